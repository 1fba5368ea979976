# SPDX-License-Identifier: BSD-3-Clause
"""A training run: a network with what trains it, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from training import TrainingError
from training.distributed import World
from training.values import json_settings, number


@dataclass
class Position:
    """How far a training is: ``epoch`` epochs, and ``step`` steps of the next.

    ``samples`` and ``loss_sum`` are those of these steps, over all ranks, and equal on all ranks; ``epoch_seconds`` is
    their time, ``seconds`` the time of all training. ``accuracy`` is the value of the last epoch that was given to
    ``end_epoch``, and ``best_accuracy`` that of the best epoch, the first of equals.
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

    smaller_is_better: ClassVar[bool] = False

    def end_epoch(self, value: Any) -> None:
        """Move to the start of the next epoch, after one that reached ``value``: a number, also of NumPy or torch."""
        value = number(value, "position.end_epoch(value)")
        self.epoch += 1
        self.step = 0
        self.samples = 0
        self.loss_sum = 0.0
        self.epoch_seconds = 0.0
        self.accuracy = value
        if self.best_epoch == 0 or self.is_better(value):
            self.best_accuracy = value
            self.best_epoch = self.epoch

    def is_better(self, value: float) -> bool:
        """Return whether a value is better than the best; each number is better than NaN."""
        if self.best_accuracy != self.best_accuracy:
            return value == value
        if self.smaller_is_better:
            return value < self.best_accuracy
        return value > self.best_accuracy


@dataclass
class Run:
    """A network with what trains it, and its position, a dataclass of numbers. All ranks must call its methods.

    ``settings`` are the options that identify this run, by the names that messages show; ``limits`` are the greatest
    values of its position; ``data`` is a fingerprint of the samples, on rank 0. ``extra`` are objects by their names
    whose state belongs to the run: with ``state_dict()`` and ``load_state_dict()``, or random generators. ``best``
    names the value that ``position.end_epoch`` is given, and whether it is best at its ``max`` or ``min``.

    Raises TrainingError if a setting has no form that a checkpoint can hold.
    """

    network: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Any
    settings: Mapping
    world: World
    limits: Mapping = field(default_factory=dict)
    data: str | None = None
    position: Any = field(default_factory=Position)
    extra: Mapping[str, Any] = field(default_factory=dict)
    best: tuple[str, str] = ("accuracy", "max")

    def __post_init__(self) -> None:
        self.settings = json_settings(self.settings)
        if self.best[1] not in ("min", "max"):
            raise TrainingError(f"best={self.best}: the second value must be 'min' or 'max'")
        if self.best[1] == "min":
            self.position.smaller_is_better = True

    def settle(self) -> None:
        """Bring the position up to date before a sharded checkpoint; a subclass may define it."""

    def save(self, checkpoints: Any) -> str | None:
        """Write a checkpoint and return its path; without any, do nothing. All ranks end if a weight is not finite."""
        return checkpoints.save(self) if checkpoints else None

    def resume(self, checkpoints: Any) -> str | None:
        """Continue from the newest checkpoint that is undamaged; return its path, None if there is none.

        The number of ranks may differ from that of the checkpoint. Raises TrainingError, on one rank, if the
        checkpoint is of another run, or if a checkpoint cannot hold a value of this one; the other ranks exit.
        """
        if not checkpoints:
            return None
        checkpoints.check(self)
        return checkpoints.resume(self)
