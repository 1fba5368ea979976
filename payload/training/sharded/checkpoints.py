# SPDX-License-Identifier: BSD-3-Clause
"""Saves a run on all ranks while it trains on, and continues it with any number of ranks."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from training import TrainingError
from training.checkpoint import Checkpoints, Run, delete, loading, read
from training.distributed import World, broadcast, fail_together
from training.files import sync_directory, temporary_name, write_file, writing
from training.finite import check_weights
from training.options import Interval
from training.sharded.state import check_forms, new_tensors
from training.sharded.storage import CHECKSUMS, VALUES, ShardWriter, copy_to_host, find_damage, list_checksums
from training.state import REMEDY, check_identity, gather_state, load_state
from training.values import dump

HALF_HOUR = Interval(seconds=1800)
QUESTION_STEPS = 8  # between the questions whether a checkpoint is due by the clock of rank 0
OLD_MANIFEST = "manifest.json"  # in checkpoints of release 1.1.0 and before


class ShardedCheckpoints(Checkpoints):
    """Checkpoints to which each rank writes a part: the directory ``step-00000500`` was written after 500 steps.

    Use it as a context manager: its end waits for what is being written. The position of a run has a ``step``; a method
    ``settle()`` of the run, if it has one, is called before a save. A rank that has written its part waits for the
    others for at most ``timeout`` seconds. Raises TrainingError with torch before 2.7: it would save tensors that the
    training changes meanwhile.
    """

    pattern = re.compile(r"step-\d{8,}")

    def __init__(
        self, directory: Path, world: World, *, keep: int = 3, every: Interval = HALF_HOUR, timeout: float = 1800
    ):
        if torch.__version__ < (2, 7):
            raise TrainingError(f"torch {torch.__version__}: sharded checkpoints need torch 2.7 or newer")
        super().__init__(directory, world, keep=keep)
        self.timeout = timedelta(seconds=timeout)
        self.every = every
        self.began = time.monotonic()
        self.group: dist.ProcessGroup | None = None
        self.writing: Any = None  # the future of an asynchronous save
        self.copies: dict[str, Tensor] = {}  # in host memory
        self.temporary = directory  # of the checkpoint that is being written
        self.step = -1  # of the newest checkpoint, complete or being written

    def __enter__(self) -> ShardedCheckpoints:
        # The writer has a process group of its own: its messages must not meet those of the training.
        self.group = dist.new_group(backend="gloo", timeout=self.timeout)
        return self

    def __exit__(self, kind, *_) -> None:
        try:
            if kind is None:
                self.wait()
            elif self.writing:  # other ranks may be training: they write their parts with this one, and no more
                with suppress(BaseException):
                    self.writing.result()
        finally:
            dist.destroy_process_group(self.group)
            self.group = None

    def path_after(self, step: int) -> Path:
        return self.directory / f"step-{step:08}"

    def collect(self, run: Run) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        """Return the tensors of a run by their names, and on rank 0 the rest of its state."""
        tensors: dict[str, Tensor] = {}
        values = gather_state(run, tensors)
        with fail_together(self.world):
            check_forms(run, tensors)
        return tensors, values

    def save_if_due(self, run: Run) -> None:
        """Start a checkpoint if one is due; call it after every step."""
        step = run.position.step
        is_due = self.every.steps > 0 and step % self.every.steps == 0
        if self.every.seconds and step % QUESTION_STEPS == 0:
            is_due = broadcast(time.monotonic() - self.began >= self.every.seconds, self.world)
        if is_due:
            self.start(run)

    def save(self, run: Run) -> str:
        """Write a checkpoint and return its path when it is complete; a step that is saved is not written again."""
        self.wait()
        require_steps(run.position)
        if self.step != run.position.step:
            self.start(run)
            self.wait()
        return str(self.path_after(self.step))

    def start(self, run: Run) -> None:
        """Copy the state to host memory, after the checkpoint before is complete, and begin to write it."""
        self.wait()
        if hasattr(run, "settle"):
            run.settle()  # brings its position up to date
        require_steps(run.position)
        check_weights(run.network.parameters(), self.world)
        tensors, values = self.collect(run)
        path = self.path_after(run.position.step)
        temporary = broadcast(temporary_name(path), self.world)
        self.writing = dcp.async_save(
            copy_to_host(tensors, self.copies),
            storage_writer=ShardWriter(temporary, partial(self.complete, temporary, path, dump(values))),
            # of a tensor that all ranks have, such as a buffer, rank 0's: DistributedDataParallel uses that one
            planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True),
            process_group=self.group,
        )
        self.temporary = temporary
        self.step = run.position.step
        self.began = time.monotonic()

    def complete(self, temporary: Path, path: Path, values: memoryview, checksums: str) -> None:
        """Write what is no tensor, give the checkpoint its name, and delete the oldest ones; rank 0 calls it."""
        write_file(temporary / VALUES, values)
        checksums += list_checksums(temporary, [".metadata", VALUES])
        write_file(temporary / CHECKSUMS, checksums.encode())
        if path.exists():  # a damaged one
            delete(path)
        temporary.rename(path)
        sync_directory(self.directory)
        self.delete_outdated(path)

    def wait(self) -> None:
        """Return when the checkpoint that is being written is complete; if a rank failed, delete it and end all."""
        if not self.writing:
            return
        future = self.writing
        self.writing = None
        try:
            with fail_together(self.world), writing(self.path_after(self.step)):
                try:
                    future.result()
                except dcp.CheckpointException as error:  # the same on all ranks, with the errors of those that failed
                    if self.world.rank in error.failures:
                        raise error.failures[self.world.rank][0] from None
        except BaseException:
            self.step = -1
            if self.world.rank == 0:
                delete(self.temporary)
            raise

    def find_damage(self, path: Path) -> str | None:
        if (path / OLD_MANIFEST).exists():
            raise TrainingError(f"{path}: written by release 1.1.0 or older. Resume it with that release, or {REMEDY}")
        return find_damage(path, self.world)

    def load(self, run: Run, path: Path) -> None:
        """Continue a run from a checkpoint.

        The number of ranks, and how the network is divided, may differ from that of the checkpoint.
        """
        with fail_together(self.world), loading(path):
            saved = read(path / VALUES)
            check_identity(path, saved, run)
            reader = dcp.FileSystemReader(path)
            tensors = new_tensors(run, reader.read_metadata())
        dcp.load(tensors, storage_reader=reader, process_group=self.group)
        with fail_together(self.world), loading(path):
            load_state(run, saved, tensors)
        self.step = run.position.step


def require_steps(position: Any) -> None:
    """Raise TrainingError if the steps of a position begin again with each epoch: they name the checkpoints."""
    if getattr(position, "epoch", 0):
        raise TrainingError(
            "position.epoch: sharded checkpoints are named by position.step. Count all steps of the run there, and "
            "leave position.epoch 0"
        )
