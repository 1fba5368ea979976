# SPDX-License-Identifier: BSD-3-Clause
"""Message sizes, and the bandwidths that a cluster profile expects."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
SMALLEST = 4  # bytes: one float32
LARGEST = 2**36  # bytes: no device has room for the copies of more
STEP = 4  # factor from one size to the next


class Threshold(NamedTuple):
    """The minimum bus bandwidth in GB/s for ``size`` bytes; ``shape``: (nodes, ranks per node), None for any."""

    busbw: float
    size: int
    shape: tuple[int, int] | None


def read_size(text: str) -> int:
    """Convert ``4``, ``64K``, ``128MiB`` to bytes; K, M, G are powers of 1024. Raises ValueError."""
    match = re.fullmatch(r"(\d+)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = int(match[1][:20]) * UNITS[match[2].upper()] if match else 0
    if not 1 <= size <= LARGEST:
        raise ValueError(f"{text[:40]!r} is not a size up to {LARGEST >> 30}G. Examples: 4, 64K, 128MiB")
    return size


def show_size(size: int) -> str:
    """Convert bytes to ``4 B`` or ``128 MiB``."""
    for unit in ("G", "M", "K"):
        if size % UNITS[unit] == 0:
            return f"{size // UNITS[unit]} {unit}iB"
    return f"{size} B"


def read_thresholds(text: str) -> list[Threshold]:
    """Read ``80.75@128MiB@2x8 10@1M``; a threshold without its last part applies to any shape. Raises ValueError."""
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
        except ValueError:
            raise ValueError(
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
