# SPDX-License-Identifier: BSD-3-Clause
"""Restores a network, its optimizer, its schedule and random states from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from training import TrainingError
from training.accelerator import module_of
from training.checkpoint.weights import load_model
from training.distributed import World


@dataclass
class Position:
    """How far a training is: ``epoch`` epochs, and ``step`` steps of the next.

    ``samples`` and ``loss_sum`` are those of these steps, over all ranks; ``epoch_seconds`` is their time;
    ``seconds`` is the time of all training. The accuracies, in per cent, are those of the last epoch and
    of the best, which is number ``best_epoch``, the first with this accuracy.
    """

    epoch: int = 0
    step: int = 0
    samples: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0
    accuracy: float = 0.0
    best_accuracy: float = 0.0
    best_epoch: int = 0
    epoch_seconds: float = 0.0

    @property
    def is_best(self) -> bool:
        """Whether this is the end of the best epoch."""
        return self.step == 0 and self.epoch == self.best_epoch

    def end_epoch(self, accuracy: float) -> None:
        """Move to the start of the next epoch, after one that reached ``accuracy``."""
        self.epoch += 1
        self.step = self.samples = 0
        self.loss_sum = self.epoch_seconds = 0.0
        self.accuracy = accuracy
        if self.epoch == 1 or accuracy > self.best_accuracy:
            self.best_accuracy, self.best_epoch = accuracy, self.epoch


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Return the random state of a rank that computes on ``device``."""
    random = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        random[device.type] = module_of(device).get_rng_state(device)
    return random


def set_random_state(random: Mapping[str, torch.Tensor], device: torch.device) -> None:
    """Set the random state of a rank that computes on ``device``; RuntimeError if torch rejects it."""
    torch.set_rng_state(random["cpu"])
    if device.type != "cpu" and device.type in random:
        module_of(device).set_rng_state(random[device.type], device)


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
