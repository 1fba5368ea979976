# SPDX-License-Identifier: BSD-3-Clause
"""Compares all content of a checkpoint with the run that resumes from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

import torch

from training import TrainingError
from training.resuming.optimizer import fit_optimizer
from training.resuming.values import MismatchError, fit, format_value, is_equal, without_prefixes

PARTS = {"model", "optimizer", "schedule", "position", "random", "settings"}
REMEDY = "choose another directory with --modelpath, or start from scratch with --restart"
MOST_NAMES = 100  # settings that are compared
MOST_REPORTED = 9  # settings in a message


def check_identity(state: Mapping, settings: Mapping, data: str | None) -> None:
    """Raise TrainingError if ``state`` is of another program or another run, with the values that differ.

    Versions before the fingerprint wrote no "data": then a line is printed, and the run continues.
    """
    file = state["file"]
    missing = PARTS - state.keys()
    if missing:
        raise TrainingError(
            f"{file}: written by another program: it has no {', '.join(sorted(missing))}. "
            "Choose another directory with --modelpath"
        )
    saved = state["settings"] if isinstance(state["settings"], Mapping) else {}
    changed = [
        f"{format_value(name)} {format_value(saved.get(name))} (now {settings.get(name)})"
        for name in islice({**settings, **saved}, MOST_NAMES)
        if not is_equal(saved.get(name), settings.get(name))
    ]
    if changed:
        raise TrainingError(
            f"{file}: written with {', '.join(changed[:MOST_REPORTED])}. Use the same options, {REMEDY}"
        )
    if data and state.get("data") is None:
        print(f"{file}: holds no fingerprint of the data. Make sure that the data is the same", flush=True)
    elif data and not is_equal(state["data"], data):
        raise TrainingError(f"{file}: written with other data. Use the same data (--data or MNIST_ROOT), {REMEDY}")


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


def fit_random(saved: object, own: list) -> list:
    """Return the random states of all ranks; raises MismatchError.

    With another number of ranks the list is empty, and ranks keep their seeds: the states cannot be assigned.
    """
    if not isinstance(saved, list):
        raise MismatchError(f"random is {format_value(saved)}, expected a list")
    if len(saved) != len(own):
        return []
    fitted = fit(saved, own, "random", all_names=False)
    return [{name: each[name] for name in each if name in given} for given, each in zip(saved, fitted)]


def fit_state(state: Mapping, own: Mapping, optimizer: torch.optim.Optimizer, extent: Extent | None) -> dict:
    """Return the parts of a ``state`` that a run can load; ``own`` is the state that it has at its start.

    Raises TrainingError if the state is of another run, MismatchError if a part differs from the run's own in
    names, shapes or types, or has a position out of bounds.
    """
    check_identity(state, own["settings"], own["data"])
    position = fit_position(state["position"], own["position"], extent)
    return {
        "model": fit(without_prefixes(state["model"]), own["model"], "model"),
        "optimizer": fit_optimizer(state["optimizer"], optimizer),
        "schedule": fit_schedule(state["schedule"], own["schedule"], position, extent),
        "position": position,
        "random": fit_random(state["random"], own["random"]),
        "file": state["file"],
    }
