# SPDX-License-Identifier: BSD-3-Clause
"""How the learning rate changes over a training."""

from __future__ import annotations


def learning_rate_factor(step: int, steps: int, rise: int | None = None) -> float:
    """Return the share of the peak learning rate: it rises for ``rise`` steps, then falls to 0.

    By default it rises for a quarter of the steps.
    """
    rise = steps // 4 if rise is None else rise
    return min((step + 1) / (rise + 1), (steps - step) / (steps - rise))
