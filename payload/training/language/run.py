# SPDX-License-Identifier: BSD-3-Clause
"""A language model in training, and how far it is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from training import TrainingError
from training.distributed import World, sum_over_ranks
from training.finite import check_loss
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
    """A model with what trains it. ``settings`` identify the run, ``data`` its text; ``tensor`` ranks share data."""

    network: GPT
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LambdaLR
    settings: dict
    data: str
    world: World
    steps: int
    tensor: int = 1
    position: Position = field(default_factory=Position)

    def start_clock(self) -> None:
        """Begin to count the time, and the losses of this rank, that ``settle`` adds to the position."""
        self.loss = torch.zeros(1, dtype=torch.float64, device=self.world.device)
        self.settled_tokens = self.position.tokens
        self.start = time.perf_counter()

    def add(self, loss: torch.Tensor, windows: int) -> None:
        """Count a step on ``windows`` windows, over all ranks, in which this rank had the sum of losses ``loss``."""
        position, tokens = self.position, windows * self.network.context
        self.loss.add_(loss)
        position.step += 1
        position.windows += windows
        position.tokens += tokens
        position.part_tokens += tokens

    def mean_loss(self) -> float:
        """Return the mean loss of this rank's bytes since ``settle``, for the progress."""
        return self.loss.item() * self.world.size / self.tensor / max(1, self.position.tokens - self.settled_tokens)

    def settle(self) -> None:
        """Add the losses of all ranks, and the time since the last call, to the position; all ranks must call it.

        If the losses are not finite, all ranks end.
        """
        position = self.position
        position.loss_sum += sum_over_ranks(self.loss)[0] / self.tensor  # waits for the device
        check_loss(position.loss_sum, f"the steps up to {position.step}", self.world)
        seconds = time.perf_counter() - self.start
        position.seconds += seconds
        position.part_seconds += seconds
        self.start_clock()

    def check_position(self, position: Mapping) -> None:
        """Raise TrainingError if the position of a checkpoint is not one of this run."""
        step, batch_size = position["step"], self.settings["batch size"]
        if not 0 <= step <= self.steps or position["windows"] != step * batch_size:
            raise TrainingError(
                f"a checkpoint after {step} steps and {position['windows']} windows does not fit this run of "
                f"{self.steps} steps. Choose another directory with --modelpath, or use --restart"
            )
