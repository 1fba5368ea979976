# SPDX-License-Identifier: BSD-3-Clause
"""Saves a run on all ranks while it trains on, and continues it with any number of ranks."""

from __future__ import annotations

import re
import time
from concurrent import futures
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
from training.files import temporary_name, write_file
from training.finite import check_weights
from training.options import HALF_HOUR, Interval
from training.sharded.state import check_forms, new_tensors
from training.sharded.storage import CHECKSUMS, VALUES, ShardWriter, checksum_line
from training.state import REMEDY, check_identity, gather_state, load_state
from training.values import dump, in_one_line

QUESTION_STEPS = 8  # between the questions whether a checkpoint is due by the clock of rank 0


class ShardedCheckpoints(Checkpoints):
    """Checkpoints to which each rank writes a part: the directory ``step-00000500`` was written after 500 steps.

    Use it as a context manager: its end waits for what is being written. The position of a run has a ``step``;
    ``settle()`` of the run is called before a save. A rank that has written its part waits for the others for at most
    ``timeout`` seconds. Raises TrainingError with torch before 2.7.
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
        self.group: Any = None
        self.copies: dict = {}  # of tensors in host memory, by name, for the next checkpoint
        self.writing: Any = None  # the future of an asynchronous save
        self.step = -1  # of the newest checkpoint, complete or being written

    def __enter__(self) -> ShardedCheckpoints:
        # The writer has a process group of its own: its messages must not meet those of the training.
        self.group = dist.new_group(backend="gloo", timeout=self.timeout)
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is None:
            self.wait()
        elif self.writing:  # other ranks may be training: they write their parts with this one, and no more
            futures.wait([self.writing])
        dist.destroy_process_group(self.group)

    def path_after(self, step: int) -> Path:
        return self.directory / f"step-{step:08}"

    def collect(self, run: Run) -> Any:
        """Return the tensors of a run by their names, and on rank 0 the rest of its state."""
        tensors: dict[str, Tensor] = {}
        values = gather_state(run, tensors)
        with fail_together(self.world):
            if getattr(run.position, "epoch", 0):
                raise TrainingError(
                    "position.epoch: sharded checkpoints are named by position.step. Count all steps of the run "
                    "there, and leave position.epoch 0"
                )
            check_forms(run, tensors)
        return tensors, values

    def save_if_due(self, run: Run) -> None:
        """Start a checkpoint if one is due; call it after every step."""
        step = run.position.step
        is_due = False
        if self.every.steps:
            is_due = step % self.every.steps == 0
        elif step % QUESTION_STEPS == 0:
            is_due = broadcast(time.monotonic() - self.began >= self.every.seconds, self.world)
        if is_due:
            self.start(run)

    def save(self, run: Run) -> str:
        """Write a checkpoint and return its path when it is complete; a step that is saved is not written again."""
        if self.step != run.position.step:
            self.start(run)
        self.wait()
        return str(self.path_after(self.step))

    def start(self, run: Run) -> None:
        """Copy the state to host memory, after the checkpoint before is complete, and begin to write it."""
        self.wait()
        run.settle()
        check_weights(run.network.parameters(), self.world)
        tensors, values = self.collect(run)
        path = self.path_after(run.position.step)
        temporary = broadcast(temporary_name(path), self.world)
        self.writing = dcp.async_save(
            tensors,
            storage_writer=ShardWriter(temporary, partial(self.complete, temporary, path, dump(values)), self.copies),
            # of a tensor that all ranks have, such as a buffer, rank 0's: DistributedDataParallel uses that one
            planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True),
            process_group=self.group,
        )
        self.step = run.position.step
        self.began = time.monotonic()

    def complete(self, temporary: Path, path: Path, values: bytes, checksums: str) -> None:
        """Write what is no tensor, give the checkpoint its name, and delete the oldest ones; rank 0 calls it."""
        write_file(temporary / VALUES, values)
        checksums += checksum_line(temporary / ".metadata") + checksum_line(temporary / VALUES)
        write_file(temporary / CHECKSUMS, checksums.encode())
        delete(path)  # if there is one, it is damaged
        temporary.rename(path)
        self.delete_outdated(path)

    def wait(self) -> None:
        """Return when the checkpoint that is being written is complete; end all ranks if one could not write."""
        if not self.writing:
            return
        with fail_together(self.world):
            try:
                self.writing.result()
            except dcp.CheckpointException as error:  # the same on all ranks, with the errors of those that failed
                raise TrainingError(
                    f"{self.directory}: the checkpoint cannot be written. Is the disk full? {error}"
                ) from None
        self.writing = None

    def find_damage(self, path: Path) -> str | None:
        """Return what is wrong with this rank's share of the files of a checkpoint."""
        if (path / "manifest.json").exists():
            raise TrainingError(f"{path}: written by release 1.1.0 or older. Resume it with that release, or {REMEDY}")
        try:
            text = (path / CHECKSUMS).read_text("ascii")
            if not text.endswith(f"  {VALUES}\n"):  # the last line
                return "a checksum is missing"
            for line in text.splitlines(keepends=True)[self.world.rank :: self.world.size]:
                _, name = line.split()
                if checksum_line(path / name) != line:
                    return f"wrong checksum of {name}"
        except (FileNotFoundError, ValueError) as error:
            return in_one_line(error)
        return None

    def load(self, run: Run, path: Path) -> None:
        """Continue a run from a checkpoint.

        The number of ranks, and how the network is divided, may differ from that of the checkpoint.
        """
        with fail_together(self.world), loading(path):
            saved = read(path / VALUES)
            check_identity(path, saved, run)
            tensors = new_tensors(run, dcp.FileSystemReader(path).read_metadata())
        dcp.load(tensors, checkpoint_id=path, process_group=self.group)
        with fail_together(self.world), loading(path):
            load_state(run, saved, tensors)
        self.step = run.position.step
