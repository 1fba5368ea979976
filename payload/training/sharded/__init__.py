# SPDX-License-Identifier: BSD-3-Clause
"""Sharded checkpoints with torch.distributed.checkpoint: each rank writes its part while the training continues."""

from training.sharded.checkpoints import ShardedCheckpoints

__all__ = ["ShardedCheckpoints"]
