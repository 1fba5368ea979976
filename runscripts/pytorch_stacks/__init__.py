# SPDX-License-Identifier: BSD-3-Clause
"""Shows where the ranks of a running job are, and which ranks did not come to a collective that timed out.

`command` starts a step beside the job's, in which `node` finds the ranks of each node and reads their stacks; `report`
puts ranks at the same place together. `dumps` compares the files of PyTorch's flight recorder.
It runs on login and compute nodes, on the host, with any Python from 3.6 and its standard library.
"""
