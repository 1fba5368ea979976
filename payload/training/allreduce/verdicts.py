# SPDX-License-Identifier: BSD-3-Clause
"""The verdicts of the check, one line each, and the bandwidths that a cluster profile expects.

A line that begins with FAIL names the ranks at fault.
"""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from training.accelerator import library_of
from training.allreduce.measuring import EXCHANGED, SMALLEST, time_alone, time_with_neighbours
from training.allreduce.nccl_log import Network, is_fast
from training.allreduce.ranks import Ranks

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
LARGEST = 2**36  # bytes: no device has room for the copies of more
STEP = 4  # factor from one size to the next


class Threshold(NamedTuple):
    """The minimum bus bandwidth in GB/s for ``size`` bytes; ``shape``: (nodes, ranks per node), None for any."""

    busbw: float
    size: int
    shape: tuple[int, int] | None


def read_size(text: str) -> int:
    """Convert ``4``, ``64K``, ``128MiB`` to bytes; K, M, G are powers of 1024. Raises ArgumentTypeError."""
    match = re.fullmatch(r"(\d+)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = int(match[1][:20]) * UNITS[match[2].upper()] if match else 0
    if not 1 <= size <= LARGEST:
        raise ArgumentTypeError(f"{text[:40]!r} is not a size up to {LARGEST >> 30}G. Examples: 4, 64K, 128MiB")
    return size


def show_size(size: int) -> str:
    """Convert bytes to ``4 B`` or ``128 MiB``."""
    for unit in ("G", "M", "K"):
        if size % UNITS[unit] == 0:
            return f"{size // UNITS[unit]} {unit}iB"
    return f"{size} B"


def read_thresholds(text: str) -> list[Threshold]:
    """Read ``80.75@128MiB@2x8 10@1M``; a threshold without its last part applies to any shape."""
    thresholds = []
    for word in text.split():
        busbw, _, rest = word.partition("@")
        size, _, shape = rest.partition("@")
        nodes, _, ranks = shape.partition("x")
        try:
            threshold = Threshold(float(busbw), read_size(size), (int(nodes), int(ranks)) if shape else None)
            if not (0 < threshold.busbw <= 1e9 and min(threshold.shape or (1,)) > 0):
                raise ValueError(word)
            thresholds.append(threshold)
        except (ValueError, ArgumentTypeError):
            raise ArgumentTypeError(
                f"{word[:40]!r} is not a threshold: <GB/s>@<size>[@<nodes>x<ranks per node>], such as 80.75@128MiB@2x8"
            ) from None
    return thresholds


def message_sizes(largest: int, thresholds: Sequence[Threshold]) -> list[int]:
    """Return the sizes in bytes, ascending: 4 B times powers of 4, and those of the thresholds, up to ``largest``."""
    powers = range(int(math.log(largest / SMALLEST, STEP) + 1e-9) + 1)
    sizes = {SMALLEST * STEP**power for power in powers} | {threshold.size for threshold in thresholds}
    return sorted(size for size in sizes if SMALLEST <= size <= largest)


def bus_factor(ranks: int) -> float:
    """Return the ratio of bus bandwidth to algorithm bandwidth of an all-reduce, as nccl-tests defines it."""
    return 2 * (ranks - 1) / ranks


def applicable_thresholds(ranks: Ranks, thresholds: Sequence[Threshold]) -> list[Threshold]:
    """Return the thresholds for this number of nodes and ranks; none for one rank, which sends nothing."""
    return [threshold for threshold in thresholds if ranks.size > 1 and threshold.shape in (None, ranks.shape)]


def check_sums(ranks: Ranks, wrong: Mapping[int, list[int]], sizes: Sequence[int]) -> str:
    """Return the verdict on the sums, with the ranks that received wrong ones."""
    if not wrong:
        return f"sums: right in all {len(sizes)} sizes on all ranks"
    size = min(wrong)
    return (
        f"FAIL sums: wrong from {show_size(size)} on {ranks.name(wrong[size])}. Repeat the check on parts of these "
        "nodes, exclude the node that is in each wrong part, and test its memory, GPU and network card"
    )


def check_bandwidth(ranks: Ranks, thresholds: Sequence[Threshold], measured: Mapping[int, float]) -> str:
    """Return the verdict on the bus bandwidths, in GB/s by message size."""
    if ranks.size == 1:
        return "bandwidth: one rank sends nothing; not checked"
    shape = "x".join(map(str, ranks.shape)) if ranks.shape else "nodes with different numbers of ranks"
    applicable = applicable_thresholds(ranks, thresholds)
    if not applicable:
        named = ", ".join("x".join(map(str, threshold.shape)) for threshold in thresholds)
        others = f"; there is one for {named}" if named else ""
        return f"bandwidth: no threshold for {shape} (nodes x ranks){others}; not checked. Set one with --threshold"
    missed = [threshold for threshold in applicable if measured.get(threshold.size, math.inf) < threshold.busbw]
    if missed:
        size = missed[0].size
        return (
            f"FAIL bandwidth: {measured[size]:.2f} GB/s at {show_size(size)}, expected "
            f"{missed[0].busbw:g} GB/s. Look at the verdict on the network, then try other nodes"
        )
    reached = [f"{busbw:g} GB/s at {show_size(size)}" for busbw, size, _ in applicable if size in measured]
    if not reached:
        return f"bandwidth: the threshold is for {show_size(applicable[0].size)}; not checked. Set --max-size"
    return f"bandwidth: at least {', '.join(reached)}, as expected"


def slow_ones(seconds: Sequence[float | None], factor: float) -> list[int]:
    """Return the ranks that took at least ``factor`` times the median, of two the smaller one."""
    known = sorted(value for value in seconds if value is not None)
    least = factor * known[(len(known) - 1) // 2] if known else 0
    return [rank for rank, value in enumerate(seconds) if value is not None and value >= least]


def check_speed(ranks: Ranks, factor: float) -> str:
    """Return the verdict on slow ranks. Every rank calls it."""
    kinds = {"alone": ranks.gather(time_alone(ranks))}
    if ranks.shape:
        kinds[f"exchanging {show_size(EXCHANGED)}"] = ranks.gather(time_with_neighbours(ranks))
    faults, ranges = [], []
    for kind, seconds in kinds.items():
        slow = slow_ones(seconds, factor)
        if ranks.shape and len(ranks.nodes) > 2:  # slow at one local index of every node: the nodes are so
            slow = [rank for rank in slow if not set(ranks.peers(rank)) <= set(slow)]
        known = [1e3 * value for value in seconds if value is not None]
        if slow:
            times = ", ".join(f"{1e3 * seconds[rank]:.2f}" for rank in slow)
            others = [1e3 * value for rank, value in enumerate(seconds) if value is not None and rank not in slow]
            faults.append(f"{ranks.name(slow)}: {times} ms {kind}, others {min(others):.2f} to {max(others):.2f} ms")
        if known:
            ranges.append(f"{min(known):.2f} to {max(known):.2f} ms {kind}")
    if faults:
        return f"FAIL speed: {'; '.join(faults)}. Check other processes there, and clocks of CPU, GPU and network card"
    return f"speed: no rank is slow: {', '.join(ranges)}"


def check_network(ranks: Ranks, network: Network | None, expected: str | None) -> str:
    """Return the verdict on the network that NCCL uses. Every rank calls it."""
    networks = ranks.gather(network)
    if network is None:
        if ranks.device.type != "cpu":
            return f"network: {library_of(ranks.device)} does not report it; not checked"
        return "network: TCP, the only network of gloo; not checked"
    if len(ranks.nodes) == 1:
        return "network: not needed on one node; not checked"
    if not expected:
        return f"network: {networks[0]}; PYTORCH_FAST_NETWORK is not set; not checked"
    slow = [rank for rank, network in enumerate(networks) if not is_fast(network, expected)]
    if not slow:
        return f"network: {networks[0]}: the fast one, as PYTORCH_FAST_NETWORK={expected} requires"
    warning = networks[slow[0]].warning
    return (
        f"FAIL network: {ranks.name(slow)} uses {networks[slow[0]]}, not {expected} as PYTORCH_FAST_NETWORK requires"
        f"{f' (NCCL warning: {warning})' if warning else ''}. Check the plugin and the cards with "
        "pytorch-doctor, and the binds of the container"
    )
