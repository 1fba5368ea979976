# SPDX-License-Identifier: BSD-3-Clause
"""The language model of lm_fsdp.py: its text, its network, how it is divided among the ranks, and its arithmetic."""
