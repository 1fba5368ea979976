"""Restores a network, its optimizer, its schedule and random states from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from training import TrainingError
from training.checkpoint.position import Position
from training.checkpoint.random_state import set_random_state
from training.checkpoint.weights import load_model
from training.distributed import World


def restore(state: Mapping, network: nn.Module, optimizer: torch.optim.Optimizer, schedule, world: World) -> Position:
    """Load a ``state`` that ``fit_state`` returned, and return its position.

    Raises TrainingError if torch rejects a random state.
    """
    load_model(network, state["model"])
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    if state["random"]:
        try:
            set_random_state(state["random"][world.rank], world.device)
        except RuntimeError as error:
            raise TrainingError(
                f"{state['file']}: invalid random state ({str(error).splitlines()[0]}). Delete it to resume from "
                "the checkpoint before"
            ) from None
    return Position(**state["position"])
