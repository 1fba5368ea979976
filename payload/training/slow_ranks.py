"""Which ranks are slow, and how messages name ranks."""

from __future__ import annotations

from collections.abc import Sequence

MOST_NAMES = 8  # ranks in one line


def default_factor(use_gpu: bool) -> float:
    """Return how many times the median a slow rank takes; CPUs may be shared with other processes."""
    return 1.5 if use_gpu else 3.0


def median_of(seconds: Sequence[float | None]) -> float | None:
    """Return the median of the ranks that have a time, of two the smaller one; None without any."""
    known = sorted(value for value in seconds if value is not None)
    return known[(len(known) - 1) // 2] if known else None


def slow_ones(seconds: Sequence[float | None], factor: float) -> list[int]:
    """Return the ranks that took at least ``factor`` times the median."""
    median = median_of(seconds)
    if median is None:
        return []
    return [rank for rank, value in enumerate(seconds) if value is not None and value >= factor * median]


def name_ranks(ranks: Sequence[int], places: Sequence[str]) -> str:
    """Return the names of ranks with their ``places``, such as hosts, for a message; of many ranks, the first few."""
    names = [f"{rank} ({places[rank]})" for rank in ranks[:MOST_NAMES]]
    more = f" and {len(ranks) - MOST_NAMES} more" if len(ranks) > MOST_NAMES else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(names)}{more}"
