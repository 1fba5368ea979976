# SPDX-License-Identifier: BSD-3-Clause
"""A language model in training, how far it is, and the values of a line of its metrics."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from training import checkpoint
from training.distributed import sum_over_ranks
from training.finite import check_loss
from training.language.model import GPT, peak_memory


@dataclass
class Position:
    """How far a training is: the same numbers on all ranks.

    ``loss_sum``, ``part_tokens`` and ``part_seconds`` are those since the last line of the metrics.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0
    part_tokens: int = 0
    part_seconds: float = 0.0
    validation_loss: float = 0.0


@dataclass
class Run(checkpoint.Run):
    """A model with what trains it; ``tensor`` ranks share data."""

    network: GPT
    tensor: int = 1
    position: Position = field(default_factory=Position)

    def start_clock(self) -> None:
        """Begin to count the time, and the losses of this rank, that ``settle`` adds to the position."""
        self.loss = torch.zeros(1, dtype=torch.float64, device=self.world.device)
        self.settled_tokens = self.position.tokens
        self.start = time.perf_counter()

    def add(self, loss: torch.Tensor, windows: int) -> None:
        """Count a step on ``windows`` windows, over all ranks, in which this rank had the sum of losses ``loss``."""
        position = self.position
        tokens = windows * self.network.context
        self.loss.add_(loss)
        position.step += 1
        position.tokens += tokens
        position.part_tokens += tokens

    def mean_loss(self) -> float:
        """Return the mean loss of this rank's bytes since ``settle``, for the progress."""
        return self.loss.item() * self.world.size / self.tensor / (self.position.tokens - self.settled_tokens)

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

    def measure(self, validation_loss: float, norm: torch.Tensor) -> dict:
        """Return the values of the steps since the last line, and begin the next; all ranks must call it.

        ``norm`` is that of the last gradient.
        """
        position = self.position
        world = self.world
        check_loss(validation_loss, f"the validation after step {position.step}", world)
        values = {
            "loss": position.loss_sum / position.part_tokens,
            "validation_loss": validation_loss,
            "tokens_per_second": position.part_tokens / position.part_seconds,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "peak_memory_bytes": peak_memory(world.device),
            "tokens": position.tokens,
            "gradient_norm": float(norm.full_tensor()),
            "seconds": position.part_seconds,
            "world_size": world.size,
        }
        position.validation_loss = validation_loss
        position.loss_sum = position.part_seconds = 0.0
        position.part_tokens = 0
        return values
