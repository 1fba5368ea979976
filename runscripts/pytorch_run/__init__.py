# SPDX-License-Identifier: BSD-3-Clause
"""Runs a step of srun on some nodes of an allocation, and again without the nodes that failed, for `pytorch-run`.

`options` -> `run`: a step, `nodes` that failed after it, the next step. It runs on the host, with any Python from 3.6
and its standard library.
"""
