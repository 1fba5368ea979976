"""Checks the sums of all-reduces, and finds the ranks that make them wrong."""

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


def sums_right(ranks: Ranks, members: Sequence[int], size: int, group=None) -> bool:
    """Add up the contributions of the ``members`` of ``group``; return whether the sums on this rank are right."""
    message = sum_of([ranks.rank], size, ranks.device)
    dist.all_reduce(message, group=group)
    ranks.wait_for_device()
    return torch.equal(message, sum_of(members, size, ranks.device))


def find_wrong(ranks: Ranks, size: int) -> list[list[int]]:
    """Return the smallest sets of ranks with wrong sums: a single rank, or ranks that are wrong only together.

    Each half of the ranks adds up separately, then each half of a wrong half, and so on.
    """
    found, suspects = [], [list(range(ranks.size))]
    while suspects:
        wrong_parts = []
        for suspect in suspects:
            middle = (len(suspect) + 1) // 2
            halves = [half for half in (suspect[:middle], suspect[middle:]) if half]
            wrong_halves = [half for half in halves if not are_right_together(ranks, half, size)]
            found += [half for half in wrong_halves if len(half) == 1]
            wrong_parts += [half for half in wrong_halves if len(half) > 1]
            if not wrong_halves:
                found.append(suspect)
        suspects = wrong_parts
    return sorted(found)


def are_right_together(ranks: Ranks, members: list[int], size: int) -> bool:
    """Return whether ``members`` compute the right sums in a group of their own; every rank calls it."""
    group = ranks.new_group(members)
    return all(ranks.gather(ranks.rank not in members or sums_right(ranks, members, size, group)))
