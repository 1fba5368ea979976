# SPDX-License-Identifier: BSD-3-Clause
"""Sharded checkpoints with torch.distributed.checkpoint: each rank writes its part while the training continues."""

from training.options import Interval, parse_interval
from training.sharded.checkpoints import ShardedCheckpoints

__all__ = ["Interval", "ShardedCheckpoints", "parse_interval"]
