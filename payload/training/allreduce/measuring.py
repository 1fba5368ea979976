# SPDX-License-Identifier: BSD-3-Clause
"""Measures all-reduces and their sums, work that a rank does alone, and exchanges between neighbours."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from training.allreduce.ranks import Ranks

SMALLEST = 4  # bytes: one float32
PERIOD = 13  # of the numbers in a message, which makes exchanged pieces visible
ROUNDS = 30  # per comparison; their mean evens out a rank that is slow for a moment
EXCHANGED = 2**20  # bytes that neighbours exchange


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


def time_all_reduce(ranks: Ranks, size: int) -> tuple[float, bool]:
    """Return the seconds of one all-reduce of ``size`` bytes, and whether sums of zeros were zero."""
    message = torch.zeros(size // SMALLEST, device=ranks.device)
    iterations = 20 if ranks.device.type != "cpu" else min(20, max(3, 2**25 // size))
    for _ in range(2):
        dist.all_reduce(message)
    ranks.wait_for_device()
    ranks.gather(None)
    start = time.perf_counter()
    for _ in range(iterations):
        dist.all_reduce(message)
    ranks.wait_for_device()
    return (time.perf_counter() - start) / iterations, not message.any()


def time_alone(ranks: Ranks) -> float:
    """Return the mean seconds of work without other ranks: multiplying, copying, reducing.

    All ranks start each round together, so that shared hardware slows them down as in a training.
    """
    limit = timedelta(seconds=ranks.timeout)
    alone = dist.new_group([ranks.rank], limit, use_local_synchronization=True)  # other ranks need not call it
    side = 4096 if ranks.device.type != "cpu" else 256
    matrix = torch.ones(side, side, device=ranks.device) / side
    host = torch.zeros(side, side)

    def work() -> float:
        start = time.perf_counter()
        for _ in range(4):
            matrix.copy_(matrix @ matrix)
            host.copy_(matrix)
            dist.all_reduce(matrix, group=alone)
        ranks.wait_for_device()
        return time.perf_counter() - start

    work()
    seconds = []
    for _ in range(ROUNDS):
        ranks.gather(None)
        seconds.append(work())
    return statistics.mean(seconds)


def pairs_in_turn(count: int) -> list[list[tuple[int, int]]]:
    """Return the pairs of neighbours on a ring of ``count`` places, in lists that use each place at most once."""
    pairs = [(place, (place + 1) % count) for place in range(count if count > 2 else count - 1)]
    odd_one = pairs[count - 1 :] if count % 2 else []
    turns = (pairs[: len(pairs) - len(odd_one) : 2], pairs[1 : len(pairs) - len(odd_one) : 2], odd_one)
    return [turn for turn in turns if turn]


def time_with_neighbours(ranks: Ranks) -> float | None:
    """Return the mean seconds of an exchange with the faster of this rank's neighbours; None without neighbours.

    On several nodes, the neighbours are on other nodes and have the same local index, so all paths are alike.
    """
    ring = ranks.ring
    place = ring.index(ranks.rank)
    outgoing = torch.zeros(EXCHANGED // SMALLEST, device=ranks.device)
    incoming = torch.zeros_like(outgoing)
    times = []
    for turn in pairs_in_turn(len(ring)):
        partner = next((ring[sum(pair) - place] for pair in turn if place in pair), None)
        ranks.gather(None)
        for round_number in range(ROUNDS if partner is not None else 0):
            if round_number == 1:  # the first round connects
                start = time.perf_counter()
            exchange = [dist.P2POp(dist.isend, outgoing, partner), dist.P2POp(dist.irecv, incoming, partner)]
            for request in dist.batch_isend_irecv(exchange):
                request.wait()
            ranks.wait_for_device()
        if partner is not None:
            times.append((time.perf_counter() - start) / (ROUNDS - 1))
    return min(times, default=None)
