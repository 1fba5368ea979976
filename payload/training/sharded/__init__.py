# SPDX-License-Identifier: BSD-3-Clause
"""Sharded checkpoints with torch.distributed.checkpoint: each rank writes its part while the training continues."""

from training.sharded.interval import Interval, parse_interval

__all__ = ["Interval", "ShardedCheckpoints", "parse_interval"]


def __getattr__(name: str):
    """Import torch only for the checkpoints themselves: a command line is parsed without it."""
    if name != "ShardedCheckpoints":
        raise AttributeError(name)
    from training.sharded.checkpoints import ShardedCheckpoints

    return ShardedCheckpoints
