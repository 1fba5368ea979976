"""Checks the sums of all-reduces."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from training.allreduce.ranks import Ranks
from training.allreduce.sizes import SMALLEST

PERIOD = 13  # of the numbers in a message, which makes exchanged pieces visible


def sum_of(ranks: Sequence[int], size: int, device: torch.device) -> torch.Tensor:
    """Return the exact sum of what ``ranks`` contribute to a message of ``size`` bytes: float32 [size // 4]."""
    count = size // SMALLEST
    numbers = [sum((7 * place + 3 * rank) % PERIOD for rank in ranks) for place in range(PERIOD)]
    return torch.tensor(numbers, dtype=torch.float32, device=device).repeat(-(-count // PERIOD))[:count]


def sums_right(ranks: Ranks, size: int) -> bool:
    """Add up the contributions of all ranks; return whether the sums on this rank are right."""
    message = sum_of([ranks.rank], size, ranks.device)
    dist.all_reduce(message)
    ranks.wait_for_device()
    return torch.equal(message, sum_of(range(ranks.size), size, ranks.device))
