"""Sharded checkpoints with torch.distributed.checkpoint: each rank writes its part while the training continues."""

from training.sharded.checkpoints import ShardedCheckpoints
from training.sharded.interval import Interval, parse_interval

__all__ = ["Interval", "ShardedCheckpoints", "parse_interval"]
