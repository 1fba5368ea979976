# SPDX-License-Identifier: BSD-3-Clause
"""Saves a run on all ranks while it trains on, and continues it with any number of ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from training import TrainingError
from training.checkpoint import REMEDY, DamagedError, MismatchError
from training.distributed import World, broadcast, fail_together, gather
from training.files import remedy_for
from training.finite import check_weights
from training.sharded.compare import fault_of_shards, fit_manifest
from training.sharded.directory import ShardedDirectory, delete, name_of
from training.sharded.interval import Interval, Timer
from training.sharded.manifest import Manifest, read_manifest
from training.sharded.reader import ShardReader
from training.sharded.state import Staging, apply, flat, state_of
from training.sharded.writer import ShardWriter

HALF_HOUR = Interval(seconds=1800)
OLDEST_TORCH = (2, 6)  # fully_shard is public since then
QUESTION_STEPS = 16  # between the questions of the ranks whether a checkpoint is complete
REPORTED_SECONDS = 1  # a longer wait for the checkpoint before is reported


class ShardedCheckpoints:
    """The checkpoints of a run whose ranks each write a part. All ranks call its methods.

    Use it as a context manager: its end waits for what is being written. A run is an object with
    ``network``, ``optimizer``, ``schedule``, ``settings``, ``data``, ``world`` and ``position``, as
    training.checkpoint.Run; its position is a dataclass of numbers with a ``step``. A method
    ``check_position(values)``, if it has one, is called before anything is loaded, ``settle()`` before a save.
    A rank that has written its part waits for the others for at most ``timeout`` seconds.
    """

    def __init__(
        self,
        directory: Path,
        world: World,
        *,
        keep: int = 3,
        every: Interval = HALF_HOUR,
        asynchronous: bool = True,
        timeout: float = 1800,
    ):
        check_torch()
        self.directory = ShardedDirectory(directory, keep)
        self.world = world
        self.asynchronous = asynchronous
        self.timeout = timedelta(seconds=timeout)
        self.timer = Timer(every, lambda choose: broadcast(choose() if world.rank == 0 else None, world))
        self.staging = Staging()
        self.group: dist.ProcessGroup | None = None
        self.writing = None  # the future of an asynchronous save
        self.temporary: Path | None = None
        self.step = -1  # of the newest checkpoint, complete or being written
        self.calls = 0
        self.damaged: list[Path] = []

    def __enter__(self) -> ShardedCheckpoints:
        # The writer has a process group of its own: its messages must not meet those of the training.
        self.group = dist.new_group(backend="gloo", timeout=self.timeout)
        return self

    def __exit__(self, kind, *_) -> None:
        try:
            if kind is None:
                self.wait()
            elif self.writing:
                # While other ranks write, their files must not lose their partner.
                self.writing.exception()
                self.clean()
        finally:
            dist.destroy_process_group(self.group)
            self.group = None

    def prepare(self, *, restart: bool = False) -> None:
        """Make the directory, and delete what killed runs left; ``restart`` also deletes the checkpoints."""
        with fail_together(self.world):
            if self.world.rank == 0:
                self.directory.prepare(restart=restart)

    def save_if_due(self, run) -> None:
        """Start a checkpoint if one is due; call it after every step."""
        self.calls += 1
        if self.writing and self.calls % QUESTION_STEPS == 0:
            is_complete = torch.tensor(int(self.writing.done()))
            dist.all_reduce(is_complete, op=dist.ReduceOp.MIN, group=self.world.host_group)
            if is_complete:
                self.wait()
        if self.timer.is_due(run.position.step):
            self.start(run)

    def save(self, run) -> str:
        """Write a checkpoint and return its path when it is complete; a step that is saved is not written again."""
        if self.step == run.position.step:
            self.wait()
        else:
            self.start(run, asynchronous=False)
        return str(self.directory.directory / name_of(self.step))

    def start(self, run, *, asynchronous: bool | None = None) -> None:
        """Write a checkpoint, after the one before is complete; if ``asynchronous``, only begin to."""
        began = time.monotonic()
        self.wait()
        waited = time.monotonic() - began
        if hasattr(run, "settle"):
            run.settle()  # brings its position up to date
        if waited > REPORTED_SECONDS and asynchronous is None and self.world.rank == 0:
            print(f"waited {waited:.0f} s for the checkpoint before. Increase --every", flush=True)
        check_weights(run.network.parameters(), self.world)
        step = run.position.step
        tensors, values = state_of(run)
        if self.world.rank == 0:
            while self.damaged:  # one of them may have the name of the new checkpoint
                self.directory.put_aside(self.damaged.pop())
        self.temporary = broadcast(self.directory.temporary(step), self.world)
        self.step = step
        writer = ShardWriter(
            self.temporary,
            values,
            self.world.size,
            self.staging.copy,
            lambda path=self.temporary: self.directory.complete(path, step),
        )
        options = {"storage_writer": writer, "process_group": self.group}
        if self.asynchronous if asynchronous is None else asynchronous:
            self.writing = dcp.async_save(tensors, **options)
        else:
            with self.faults():
                dcp.save(tensors, **options)
        self.timer.start(step)

    def wait(self) -> None:
        """Return when the checkpoint that is being written is complete."""
        if self.writing:
            writing, self.writing = self.writing, None
            with self.faults():
                writing.result()

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Delete a checkpoint that fails in the ``with`` block, and end all ranks with the line of one."""
        try:
            yield
        except BaseException as error:
            path = self.directory.directory / name_of(self.step)
            self.step = -1
            self.clean()
            if isinstance(error, dcp.CheckpointException):
                raise_fault(error, self.world, lambda fault: writing_fault(path, fault))
            raise
        self.temporary = None

    def clean(self) -> None:
        """Delete a checkpoint that was not completed."""
        if self.world.rank == 0 and self.temporary:
            delete(self.temporary)
        self.temporary = None

    def resume(self, run) -> str | None:
        """Continue a run from the newest checkpoint that is undamaged and fits; return its path, None if there is none.

        The number of ranks, and how the network is divided, may differ from that of the checkpoint. If it is
        of another run, one rank raises TrainingError and the others exit.
        """
        paths = None
        with fail_together(self.world):
            if self.world.rank == 0:
                paths = self.directory.paths()
        paths = broadcast(paths, self.world)
        mismatch = None
        for path in reversed(paths):
            manifest, fault = self.verified(path)
            if fault:
                fault = f"damaged ({fault})"
            elif fault := self.load(run, path, manifest):
                fault = f"does not fit this run ({fault})"
                mismatch = mismatch or f"{path}: {fault}"
            else:
                self.timer.start(run.position.step)
                self.step = run.position.step
                return str(path)
            if self.world.rank == 0:
                print(f"{path}: {fault}; trying the checkpoint before", flush=True)
                self.damaged.append(path)
        with fail_together(self.world):
            if mismatch:
                raise TrainingError(f"{mismatch}. Use the program that wrote it, {REMEDY}")
            if paths:
                raise TrainingError(
                    f"{self.directory.directory}: all {len(paths)} checkpoints are damaged. Restore one, "
                    "or start from scratch with --restart"
                )
        return None

    def verified(self, path: Path) -> tuple[Manifest | None, str]:
        """Return the manifest of a checkpoint, and what is damaged; each rank reads a share of the files."""
        found = None, ""
        with fail_together(self.world):
            if self.world.rank == 0:
                try:
                    found = read_manifest(path), ""
                except DamagedError as fault:
                    found = None, str(fault)
        manifest, fault = broadcast(found, self.world)
        if fault:
            return None, fault
        with fail_together(self.world):
            fault = fault_of_shards(manifest, path, self.world.rank, self.world.size)
        return manifest, self.first_of_all(fault)

    def first_of_all(self, fault: str) -> str:
        """Return the fault of the lowest rank that has one, the same on all ranks; empty if none has."""
        faults = broadcast(gather(fault, self.world), self.world)
        return next(filter(None, faults), "")

    def load(self, run, path: Path, manifest: Manifest) -> str:
        """Continue a run from a checkpoint whose files are undamaged; return what does not fit, empty if all does."""
        tensors, values = state_of(run)
        own = dict(flat(tensors))
        fault = ""
        with fail_together(self.world):
            try:
                fitted = fit_manifest(manifest, path, own, values)
            except MismatchError as error:
                fault = str(error)
        if fault := self.first_of_all(fault):
            return fault
        with fail_together(self.world):
            if hasattr(run, "check_position"):
                run.check_position(fitted["position"])
        # With another number of ranks the random states cannot be assigned, and ranks keep their seeds.
        if manifest.size != self.world.size or any(name not in manifest.tensors for name in own):
            del tensors["random"]
        dtypes = {name: tensor.dtype for name, tensor in flat(tensors)}
        with fail_together(self.world):
            try:
                dcp.load(tensors, storage_reader=ShardReader(path, manifest, dtypes), process_group=self.group)
            except dcp.CheckpointException as error:
                raise_fault(error, self.world, lambda fault: reading_fault(path, fault))
        with fail_together(self.world):
            apply(run, tensors, fitted, str(path))
        return ""


def raise_fault(error: dcp.CheckpointException, world: World, explain) -> None:
    """Raise on the lowest rank that failed what ``explain`` makes of its fault; the others exit with status 1."""
    lowest = min(error.failures)
    if world.rank != lowest:
        raise SystemExit(1)
    fault = error.failures[lowest][0]
    raise explain(fault) from fault


def writing_fault(path: Path, fault: BaseException) -> BaseException:
    """Return why a checkpoint was not written, in one line if the user can correct it."""
    if isinstance(fault, OSError):
        return TrainingError(f"{path}: cannot be written ({fault.strerror}). {remedy_for(fault)}")
    return fault


def reading_fault(path: Path, fault: BaseException) -> BaseException:
    """Return why a checkpoint whose checksums are right was not loaded, in one line if the user can correct it."""
    if isinstance(fault, (DamagedError, OSError)):
        return TrainingError(f"{path}: cannot be loaded ({fault}). Delete it to resume from the checkpoint before")
    return fault


def check_torch() -> None:
    """Raise TrainingError if this torch is too old."""
    if tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < OLDEST_TORCH:
        raise TrainingError(
            f"sharded checkpoints need torch {'.'.join(map(str, OLDEST_TORCH))} or newer, found {torch.__version__}. "
            "Load a newer PyTorch module"
        )
