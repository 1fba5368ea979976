# SPDX-License-Identifier: BSD-3-Clause
"""Ends a training, on all ranks at once, when its loss or its weights are no longer finite numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from training import NOT_FINITE, TrainingError
from training.distributed import World, fail_together

REMEDY = "Use a smaller --lr, or check the data; a run that has checkpoints needs --restart for other options"


def check_loss(loss: float, when: str, world: World) -> None:
    """Raise TrainingError, on rank 0, if a ``loss`` that all ranks have is not finite; the other ranks exit."""
    if not math.isfinite(loss):
        if world.rank:
            raise SystemExit(1)
        raise TrainingError(f"the loss of {when} {NOT_FINITE}: {loss}. {REMEDY}")


def are_finite(parameters: Iterable[Tensor]) -> bool:
    """Return whether all numbers in parameters, or in this rank's parts of them, are finite; waits for the device."""
    ends = []
    for parameter in parameters:
        local = getattr(parameter, "_local_tensor", parameter).detach()
        if local.is_complex():
            local = torch.view_as_real(local)
        if local.is_floating_point() and local.numel():
            # NaN is both the least and the greatest number; unlike isfinite(), no tensor of the same size is made
            ends.extend(local.aminmax())
    if not ends:
        return True
    return all(map(math.isfinite, torch.stack([end.to(ends[0].device) for end in ends]).tolist()))


def check_weights(parameters: Iterable[Tensor], world: World) -> None:
    """End all ranks if a parameter of one is not finite; call it before a checkpoint, which may replace a better one.

    Buffers are not examined: a mask may hold infinity.
    """
    with fail_together(world):
        if not are_finite(parameters):
            raise TrainingError(f"a weight {NOT_FINITE}, and no checkpoint is written. {REMEDY}")
