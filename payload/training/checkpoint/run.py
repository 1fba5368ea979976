# SPDX-License-Identifier: BSD-3-Clause
"""A training that can be saved and resumed: what a checkpoint holds, gathered from all ranks and given back to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from training.checkpoint.directory import Checkpoints
from training.checkpoint.restoring import Position, random_state, restore
from training.distributed import World, broadcast, fail_together, gather
from training.finite import check_weights
from training.resuming import Extent, fit_state

BYTES_PER_WEIGHT = 8  # times the size of the weights: an optimizer has few tensors for each weight
RANDOM_BYTES = 2**26  # for the random states of all ranks, 5 KB each


class Run:
    """A network with what trains it, and its position. All ranks must call its methods.

    ``settings`` are the options that identify this run, by the names that messages show; ``data`` is a
    fingerprint of the samples, on rank 0; ``extent`` limits the position.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer,
        schedule,
        settings: Mapping,
        world: World,
        *,
        extent: Extent | None = None,
        data: str | None = None,
    ):
        self.network = network
        self.optimizer = optimizer
        self.schedule = schedule
        self.settings = settings
        self.world = world
        self.extent = extent
        self.data = data
        self.position = Position()

    def save(self, checkpoints: Checkpoints) -> Path | None:
        """Write a checkpoint, also as best.pt after the best epoch; return its path on rank 0.

        If a weight is not a finite number, all ranks end, and the checkpoints stay as they are.
        """
        check_weights(self.network.state_dict().values(), self.world)
        state = self.state()
        position = self.position
        path = None
        with fail_together(self.world):
            if self.world.rank == 0:
                path = checkpoints.save(state, epoch=position.epoch, step=position.step, best=position.is_best)
        return path

    def resume(self, checkpoints: Checkpoints) -> str | None:
        """Continue from the newest checkpoint that is undamaged and fits; return its file, None if there is none.

        The number of ranks may differ from that of the checkpoint. If the checkpoint is of another run, one
        rank raises TrainingError and the others exit.
        """
        state = None
        with fail_together(self.world):
            if self.world.rank == 0:
                own = self.own_state()
                state = checkpoints.latest(
                    self.most_bytes(), lambda state: fit_state(state, own, self.optimizer, self.extent)
                )
        # Only rank 0 reads: the ranks may see different files at the same moment.
        state = broadcast(state, self.world)
        with fail_together(self.world):
            if state:
                self.position = restore(state, self.network, self.optimizer, self.schedule, self.world)
        return state and state["file"]

    def end_epoch(self, before: Position, reached: float) -> dict[str, float]:
        """Move the position to the next epoch, after one that reached an accuracy; return its values for the metrics.

        ``before`` is the position at which this start began the epoch.
        """
        position = self.position
        seconds = position.epoch_seconds
        # A checkpoint of an older version does not record how long its steps of this epoch took.
        uncounted = 0 if before.epoch_seconds else before.samples
        values = {
            "loss": position.loss_sum / position.samples,
            "accuracy": reached,
            "seconds": seconds,
            "images_per_second": (position.samples - uncounted) / seconds,
            "world_size": self.world.size,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
        }
        position.end_epoch(reached)
        return values

    def state(self) -> dict:
        """Return the content of a checkpoint; on rank 0 it has the random states of all ranks."""
        random = gather(random_state(self.world.device), self.world)
        return {**self.parts(), "position": asdict(self.position), "random": random, "torch": str(torch.__version__)}

    def parts(self) -> dict:
        """Return the parts of a checkpoint that this rank has by itself."""
        return {
            "model": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "settings": dict(self.settings),
            "data": self.data,
        }

    def most_bytes(self) -> int:
        """Return a size that no checkpoint of this run exceeds."""
        tensors = self.network.state_dict().values()
        return BYTES_PER_WEIGHT * sum(tensor.numel() * tensor.element_size() for tensor in tensors) + RANDOM_BYTES

    def own_state(self) -> dict:
        """Return the state of this run at its start, with which a checkpoint is compared; call it on rank 0."""
        random = [random_state(self.world.device)] * self.world.size
        return {**self.parts(), "position": asdict(Position()), "random": random}
