"""Adds up messages over the ranks, and finds the ranks whose sums are wrong."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from training.allreduce.ranks import Ranks
from training.allreduce.sizes import SMALLEST

PERIOD = 13  # of the numbers in a message, so that pieces that change places are noticed


def sum_of(ranks: Sequence[int], size: int, device: torch.device) -> torch.Tensor:
    """Return what ``ranks`` contribute to a message of ``size`` bytes, added up: float32 [size // 4], exact."""
    count = size // SMALLEST
    numbers = [sum((7 * place + 3 * rank) % PERIOD for rank in ranks) for place in range(PERIOD)]
    return torch.tensor(numbers, dtype=torch.float32, device=device).repeat(-(-count // PERIOD))[:count]


def sums_right(ranks: Ranks, members: Sequence[int], size: int, group=None) -> bool:
    """Add up the contributions of ``members``, who are the ``group``; return whether this rank has the right sums."""
    message = sum_of([ranks.rank], size, ranks.device)
    dist.all_reduce(message, group=group)
    ranks.wait_for_device()
    return torch.equal(message, sum_of(members, size, ranks.device))


def find_wrong(ranks: Ranks, size: int) -> list[list[int]]:
    """Return the smallest sets of ranks whose sums are wrong: a rank that is wrong alone, or ranks between which it is.

    Halves of the ranks add up by themselves, then halves of each half that is wrong, and so on.
    """
    found, suspects = [], [list(range(ranks.size))]
    while suspects:
        wrong_parts = []
        for suspect in suspects:
            middle = (len(suspect) + 1) // 2
            halves = [half for half in (suspect[:middle], suspect[middle:]) if half]
            wrong_halves = [half for half in halves if not _right_together(ranks, half, size)]
            found += [half for half in wrong_halves if len(half) == 1]
            wrong_parts += [half for half in wrong_halves if len(half) > 1]
            if not wrong_halves:
                found.append(suspect)
        suspects = wrong_parts
    return sorted(found)


def _right_together(ranks: Ranks, members: list[int], size: int) -> bool:
    """Return whether ``members`` have the right sums in a group of their own; every rank calls it."""
    group = ranks.new_group(members)
    return all(ranks.gather(ranks.rank not in members or sums_right(ranks, members, size, group)))
