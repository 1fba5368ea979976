"""Compares the position in a checkpoint with the length of the training, and with its schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from training.resuming.values import MismatchError, fit, format_value


class Extent(NamedTuple):
    """The length of a training: its epochs, the steps and the samples of an epoch."""

    epochs: int
    steps: int
    samples: int


def fit_position(saved, fresh: Mapping, extent: Extent | None) -> dict:
    """Return a saved position if it is within ``extent``, if that is known; raises MismatchError.

    Names that a checkpoint of an older version lacks keep their fresh values.
    """
    if not isinstance(saved, Mapping) or not set(saved) <= set(fresh):
        raise MismatchError("position has other names")
    position = fit(saved, fresh, "position", all_names=False)
    epochs, steps, samples = extent or (2**31, 2**31, 2**63)
    most = {"epoch": epochs, "step": steps - 1, "samples": samples, "best_epoch": position["epoch"]}
    if position["epoch"] == epochs:
        most["step"] = 0
    for name, value in position.items():
        if name in most and not (type(value) is int and 0 <= value <= most[name]):
            raise MismatchError(f"position[{name}] is {format_value(value)}, expected 0 to {most[name]}")
        if name.endswith("seconds") and not 0 <= value < math.inf:
            raise MismatchError(f"position[{name}] is {format_value(value)}, expected 0 or more")
    if extent and position["samples"] < position["step"]:
        raise MismatchError(f"position[samples] is {position['samples']} after {position['step']} steps")
    return position


def fit_schedule(saved: object, own: Mapping, position: Mapping, extent: Extent | None) -> dict:
    """Return the state of a schedule if its steps are those of ``position``; raises MismatchError."""
    schedule = fit(saved, own, "schedule", all_names=False)
    if extent:
        steps = position["epoch"] * extent.steps + position["step"]
        if schedule.get("last_epoch", steps) != steps:
            raise MismatchError(f"schedule[last_epoch] is not {steps}, the steps of its position")
    return schedule
