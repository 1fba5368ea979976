"""Compares all content of a checkpoint with the run that resumes from it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from training.resuming.identity import check_identity
from training.resuming.optimizer import fit_optimizer
from training.resuming.position import Extent, fit_position, fit_schedule
from training.resuming.random_state import fit_random
from training.resuming.values import fit, without_prefixes


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
