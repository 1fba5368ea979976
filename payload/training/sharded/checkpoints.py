# SPDX-License-Identifier: BSD-3-Clause
"""Saves a run on all ranks while it trains on, and continues it with any number of ranks."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from training import NOT_FINITE
from training.checkpoint import Checkpoints, Run, check_random_state, delete, fit, fit_groups, fit_values, misfit
from training.distributed import World, broadcast, fail_together
from training.files import sync_directory, temporary_name, writing
from training.finite import are_finite, check_weights
from training.options import Interval
from training.sharded.state import apply, flat, state_of
from training.sharded.storage import MANIFEST, ShardReader, ShardWriter, read_manifest

HALF_HOUR = Interval(seconds=1800)
QUESTION_STEPS = 8  # between the questions whether a checkpoint is complete on all ranks, or due by the clock of rank 0


class ShardedCheckpoints(Checkpoints):
    """Checkpoints to which each rank writes a part: the directory ``step-00000500`` was written after 500 steps.

    Use it as a context manager: its end waits for what is being written. The position of a run has a ``step``; a method
    ``settle()`` of the run, if it has one, is called before a save. A rank that has written its part waits for the
    others for at most ``timeout`` seconds.
    """

    pattern = re.compile(r"step-\d{8,}")

    def __init__(
        self, directory: Path, world: World, *, keep: int = 3, every: Interval = HALF_HOUR, timeout: float = 1800
    ):
        super().__init__(directory, world, keep=keep)
        self.timeout = timedelta(seconds=timeout)
        self.every, self.began = every, time.monotonic()
        self.copies: dict[str, Tensor] = {}
        self.group: dist.ProcessGroup | None = None
        self.writing: Any = None  # the future of an asynchronous save
        self.temporary = directory  # of the checkpoint that is being written
        self.step = -1  # of the newest checkpoint, complete or being written

    def __enter__(self) -> ShardedCheckpoints:
        # The writer has a process group of its own: its messages must not meet those of the training.
        self.group = dist.new_group(backend="gloo", timeout=self.timeout)
        return self

    def __exit__(self, kind, *_) -> None:
        try:
            # Also after a fault: while other ranks write, their files must not lose their partner.
            with nullcontext() if kind is None else suppress(BaseException):
                self.wait()
        finally:
            dist.destroy_process_group(self.group)
            self.group = None

    def path_after(self, step: int) -> Path:
        return self.directory / f"step-{step:08}"

    def save_if_due(self, run: Run) -> None:
        """Start a checkpoint if one is due; call it after every step."""
        step, every = run.position.step, self.every
        is_due = every.steps > 0 and step % every.steps == 0
        if step % QUESTION_STEPS == 0 and (self.writing or every.seconds):
            is_late = self.world.rank == 0 and 0 < every.seconds <= time.monotonic() - self.began
            answers = torch.tensor([int(self.writing is not None and not self.writing.done()), int(is_late)])
            dist.all_reduce(answers, op=dist.ReduceOp.MAX, group=self.world.host_group)
            if not answers[0]:
                self.wait()
            is_due = is_due or bool(answers[1])
        if is_due:
            self.start(run)

    def save(self, run: Run) -> str:
        """Write a checkpoint and return its path when it is complete; a step that is saved is not written again."""
        self.wait()
        path = self.path_after(run.position.step)
        # it may have been deleted, also while it was written
        if self.step != run.position.step or not broadcast((path / MANIFEST).exists(), self.world):
            self.start(run, asynchronous=False)
        return str(path)

    def start(self, run: Run, *, asynchronous: bool = True) -> None:
        """Write a checkpoint, after the one before is complete; if ``asynchronous``, only begin to."""
        self.wait()
        if hasattr(run, "settle"):
            run.settle()  # brings its position up to date
        check_weights(run.network.parameters(), self.world)
        self.step = run.position.step
        tensors, values = state_of(run)
        path = self.path_after(self.step)
        self.temporary = broadcast(temporary_name(path), self.world)
        writer = ShardWriter(
            self.temporary, values, self.world.size, self.copies, partial(self.complete, self.temporary, path)
        )
        if asynchronous:
            self.writing = dcp.async_save(tensors, storage_writer=writer, process_group=self.group)
        else:
            self.finish(lambda: dcp.save(tensors, storage_writer=writer, process_group=self.group))
        self.began = time.monotonic()

    def complete(self, temporary: Path, path: Path) -> None:
        """Give a checkpoint whose files are on the disk its name, and delete the oldest ones; rank 0 calls it."""
        if path.exists():  # a damaged one
            delete(path)
        temporary.rename(path)
        sync_directory(self.directory)
        self.delete_outdated(path)

    def wait(self) -> None:
        """Return when the checkpoint that is being written is complete."""
        if self.writing:
            future, self.writing = self.writing, None
            self.finish(future.result)

    def finish(self, write: Callable) -> None:
        """Complete a checkpoint; if it fails, delete it and end all ranks with the line of the lowest that failed."""
        try:
            write()
        except BaseException as error:
            path = self.path_after(self.step)
            self.step = -1
            if self.world.rank == 0:
                delete(self.temporary)
            if not isinstance(error, dcp.CheckpointException):
                raise
            lowest = min(error.failures)
            fault = error.failures[lowest][0]
            if self.world.rank != lowest:
                raise SystemExit(1) from None
            with writing(path):
                raise fault from None

    def load(self, run: Run, path: Path) -> str:
        """Continue a run from a checkpoint, and return its path; UnusableError, on all ranks, if that is impossible.

        The number of ranks, and how the network is divided, may differ from that of the checkpoint.
        """
        tensors, values = state_of(run)
        own = dict(flat(tensors))

        def read_and_fit() -> tuple[dict, dict] | None:
            if self.world.rank:
                return None
            manifest = read_manifest(path)
            return manifest, fit_manifest(path, manifest, own, values, run)

        manifest, fitted = broadcast(self.agree(read_and_fit), self.world)
        # With another number of ranks the random states cannot be assigned, and ranks keep their seeds.
        if manifest["size"] != self.world.size or not own.keys() <= manifest["tensors"].keys():
            del tensors["random"]

        def read() -> None:
            dtypes = {name: tensor.dtype for name, tensor in flat(tensors)}
            reader = ShardReader(path, manifest, dtypes)
            try:
                dcp.load(tensors, storage_reader=reader, process_group=self.group)  # names of parts, equal on all ranks
            except dcp.CheckpointException as error:
                raise error.failures[min(error.failures)][0] from None
            if not are_finite(tensors["model"].values()):
                raise misfit(f"a weight {NOT_FINITE}")
            for state in tensors.get("random", {}).values():
                check_random_state(state, self.world.device)

        self.agree(read)
        with fail_together(self.world):
            apply(run, tensors, fitted)
        self.step = run.position.step
        return str(path)


def fit_manifest(path: Path, manifest: Mapping, own: Mapping[str, Tensor], values: Mapping, run: Run) -> dict:
    """Return the values of a checkpoint that a run can load; ``own`` and ``values`` are its own.

    Raises TrainingError if the checkpoint is of another run, UnusableError if a part differs from the run's own in
    names, shapes or types.
    """
    saved = manifest["values"]
    fitted = fit_values(path, {"model": None, "random": None, **saved}, run)  # these two are tensors
    found = {name: (f"torch.{dtype}", shape) for name, (dtype, shape, _) in manifest["tensors"].items()}
    expected = {name: (str(tensor.dtype), tuple(tensor.shape)) for name, tensor in own.items()}
    for name in found.keys() | expected.keys():
        is_absent = name not in found or name not in expected
        if found.get(name) != expected.get(name) and not (is_absent and name.startswith("random.")):  # of other ranks
            raise misfit("other names, shapes or types of its tensors")
    if path.name != f"step-{fitted['position']['step']:08}":
        raise misfit("its position is not that of its name")
    optimizer = saved["optimizer"] if isinstance(saved["optimizer"], dict) else {}
    state = fit(optimizer.get("state"), values["optimizer"]["state"], "optimizer")
    groups = fit_groups(optimizer.get("param_groups"), values["optimizer"]["param_groups"])
    return {**fitted, "optimizer": {"state": state, "param_groups": groups}}
