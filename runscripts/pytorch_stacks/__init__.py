# SPDX-License-Identifier: BSD-3-Clause
"""Shows where the ranks of a running job are: the stack of each rank, from py-spy.

`command` starts a step beside the job's, in which `node` finds the ranks of each node and reads their stacks; `report`
puts ranks at the same place together. It runs on login and compute nodes, on the host, with any Python from 3.6 and its
standard library.
"""

from collections import namedtuple

#: A rank of a world of `size` ranks, which all have the text `launch`; its Slurm `step` or None, its
#: node and process; its Threads, the main thread first, or the `fault`, why there are none.
Rank = namedtuple("Rank", "rank size launch step node pid threads fault")

#: A thread of a rank or of a process that it started; a frame is [function, file, line], the innermost
#: one first.
Thread = namedtuple("Thread", "name frames")
