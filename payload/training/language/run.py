"""A language model in training, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from training import TrainingError
from training.distributed import World
from training.language.model import GPT


@dataclass
class Position:
    """How far a training is: the same numbers on all ranks.

    ``windows`` of the text were taken so far, in the order that the seed decides; ``loss_sum``, ``part_tokens``
    and ``part_seconds`` are those since the last line of the metrics.
    """

    step: int = 0
    windows: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0
    part_tokens: int = 0
    part_seconds: float = 0.0
    validation_loss: float = 0.0


@dataclass
class Run:
    """A model with what trains it. ``settings`` identify the run, and ``data`` its text."""

    network: GPT
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LambdaLR
    settings: dict
    data: str
    world: World
    steps: int
    position: Position = field(default_factory=Position)

    def check_position(self, position: Mapping) -> None:
        """Raise TrainingError if the position of a checkpoint is not one of this run."""
        step, batch_size = position["step"], self.settings["batch size"]
        if not 0 <= step <= self.steps or position["windows"] != step * batch_size:
            raise TrainingError(
                f"a checkpoint after {step} steps and {position['windows']} windows does not fit this run of "
                f"{self.steps} steps. Choose another directory with --modelpath, or use --restart"
            )
