# SPDX-License-Identifier: BSD-3-Clause
"""The schedule of a training: the learning rate of each step, and the order of the samples in each epoch."""

from __future__ import annotations

import torch


def learning_rate_factor(step: int, steps: int, rise: int) -> float:
    """Return the share of the peak learning rate: it rises for ``rise`` steps, then falls to 0."""
    return min((step + 1) / (rise + 1), (steps - step) / (steps - rise))


def epoch_order(count: int, seed: int, epoch: int) -> torch.Tensor:
    """Return the order of ``count`` samples in an epoch, from 0: int64 [count], the same on every rank.

    The seed of an epoch is drawn from ``seed``: with ``seed + epoch``, neighbouring seeds would share most epochs.
    """
    generator = torch.Generator().manual_seed(seed)
    epoch_seed = torch.randint(2**31, (epoch + 1,), generator=generator)[-1]
    return torch.randperm(count, generator=generator.manual_seed(int(epoch_seed)))
