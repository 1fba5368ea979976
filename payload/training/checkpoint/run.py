"""What a checkpoint holds, and the run that saves it and resumes from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import nn

from training import TrainingError
from training.checkpoint.directory import Checkpoints
from training.checkpoint.weights import load_model, without_prefixes
from training.distributed import World, broadcast, fail_together, gather
from training.resuming import Extent, MismatchError, describe, fit, fit_optimizer, fit_position, is_equal

RANDOM_BYTES = 2**26  # room for the random states of all ranks, 5 KB each, in the size of a checkpoint


@dataclass
class Position:
    """How far a training is: ``epoch`` epochs, and ``step`` steps of the next.

    ``samples`` and ``loss_sum`` are those of these steps, over all ranks, ``epoch_seconds`` the time that they
    took; ``seconds`` is the time spent in training; the accuracies, in per cent, are of the last epoch and of
    the best, which is the first that reached as much and number ``best_epoch``.
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

    def end_epoch(self, accuracy: float) -> None:
        """Stand at the beginning of the next epoch, after one that ended with ``accuracy``."""
        self.epoch += 1
        self.step = self.samples = 0
        self.loss_sum = self.epoch_seconds = 0.0
        self.accuracy = accuracy
        if self.epoch == 1 or accuracy > self.best_accuracy:
            self.best_accuracy, self.best_epoch = accuracy, self.epoch


class Run:
    """What a checkpoint holds, and what goes on from one. All ranks must call its methods.

    ``settings`` are the options, by the names that people know, that make it this run and no other;
    ``data`` is a fingerprint of the samples, on rank 0; ``extent`` bounds the position.
    """

    def __init__(
        self, network: nn.Module, optimizer, schedule, settings: Mapping, world: World,
        *, extent: Extent | None = None, data: str | None = None,
    ):  # fmt: skip
        self.network = network
        self.optimizer = optimizer
        self.schedule = schedule
        self.settings = settings
        self.world = world
        self.extent = extent
        self.data = data
        self.position = Position()

    def save(self, checkpoints: Checkpoints) -> Path:
        """Write a checkpoint, and best.pt after the best epoch so far; return when it is whole."""
        state = self.state()
        position = self.position
        best = position.step == 0 and position.epoch == position.best_epoch
        path = None
        with fail_together(self.world):
            if self.world.rank == 0:
                path = checkpoints.save(state, epoch=position.epoch, step=position.step, best=best)
        return path

    def resume(self, checkpoints: Checkpoints) -> str | None:
        """Go on from the newest checkpoint that is whole; return its file, None if there is none.

        The number of ranks may be another than before. Raises TrainingError on one rank, and ends
        the others, where that checkpoint is of another run.
        """
        state = None
        with fail_together(self.world):
            if self.world.rank == 0:
                state = checkpoints.latest(self.most_bytes())
                state = state and self.check(state)
        # One rank reads for all: not all may see the same files at the same moment.
        state = broadcast(state, self.world)
        with fail_together(self.world):
            if state:
                self.restore(state)
        return state and state["file"]

    def state(self) -> dict:
        """Return what a checkpoint holds; the random states are those of all ranks on rank 0."""
        return {
            "model": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "position": asdict(self.position),
            "random": gather(self.random_state(), self.world),
            "settings": dict(self.settings),
            "data": self.data,
            "torch": str(torch.__version__),
        }

    def random_state(self) -> dict:
        """Return the random state of this rank."""
        random = {"cpu": torch.get_rng_state()}
        if self.world.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.world.device)
        return random

    def most_bytes(self) -> int:
        """Return the size that no checkpoint of this run exceeds: an optimizer has few tensors for each weight."""
        tensors = self.network.state_dict().values()
        return 8 * sum(tensor.numel() * tensor.element_size() for tensor in tensors) + RANDOM_BYTES

    def check(self, state: Mapping) -> dict:
        """Return what of a ``state`` that Checkpoints read this run can take over; on rank 0.

        Nothing is loaded yet. Raises TrainingError where it is of another run, or where a part is not like
        that of this run: its names, shapes, types, and the bounds of the position.
        """
        file = state["file"]
        remedy = "name another directory with --modelpath, or begin anew with --restart"
        missing = {"model", "optimizer", "schedule", "position", "random", "settings"} - state.keys()
        if missing:
            raise TrainingError(
                f"{file}: has no {', '.join(sorted(missing))}, so it is of another program; "
                "name another directory with --modelpath"
            )
        saved = state["settings"] if isinstance(state["settings"], Mapping) else {}
        changed = [
            f"{describe(name)} {describe(saved.get(name))} (now {self.settings.get(name)})"
            for name in islice({**self.settings, **saved}, 100)
            if not is_equal(saved.get(name), self.settings.get(name))
        ]
        if changed:
            raise TrainingError(f"{file}: made with {', '.join(changed[:9])}; start with the same options, {remedy}")
        if self.data and state.get("data") is None:
            print(f"{file}: holds no fingerprint of the data; make sure that the data is the same", flush=True)
        elif self.data and not is_equal(state["data"], self.data):
            raise TrainingError(f"{file}: made with other data; name the same data with --data or MNIST_ROOT, {remedy}")
        try:
            fitting = {
                "model": fit(without_prefixes(state["model"]), self.network.state_dict(), "model"),
                "optimizer": fit_optimizer(state["optimizer"], self.optimizer),
                "schedule": fit(state["schedule"], self.schedule.state_dict(), "schedule", all_names=False),
                "position": fit_position(state["position"], asdict(Position()), self.extent),
                "random": [],
            }
            if not isinstance(state["random"], list):
                raise MismatchError(f"random is {describe(state['random'])}, expected a list")
            # In a world of another size the ranks keep the random states that they were seeded with:
            # there is no telling whose is whose.
            if len(state["random"]) == self.world.size:
                own = [self.random_state()] * self.world.size
                random = zip(state["random"], fit(state["random"], own, "random", all_names=False))
                fitting["random"] = [{name: each[name] for name in each if name in saved} for saved, each in random]
            steps = fitting["position"]["epoch"] * self.extent.steps + fitting["position"]["step"] if self.extent else 0
            if self.extent and fitting["schedule"].get("last_epoch", steps) != steps:
                raise MismatchError(f"schedule[last_epoch] is not {steps}, the steps of its position")
        except MismatchError as fault:
            raise TrainingError(
                f"{file}: does not fit this run ({fault}). Delete it to go back to the checkpoint before, {remedy}"
            ) from None
        return {**fitting, "file": file}

    def restore(self, state: Mapping) -> None:
        """Take over a ``state`` that ``check`` returned; TrainingError where a random state is none."""
        load_model(self.network, state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.position = Position(**state["position"])
        if state["random"]:
            random = state["random"][self.world.rank]
            try:
                torch.set_rng_state(random["cpu"])
                if "cuda" in random:
                    torch.cuda.set_rng_state(random["cuda"], self.world.device)
            except RuntimeError as error:
                raise TrainingError(
                    f"{state['file']}: the random state is none ({str(error).splitlines()[0]}). Delete it to go "
                    "back to the checkpoint before"
                ) from None
