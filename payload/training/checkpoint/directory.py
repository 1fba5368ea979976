# SPDX-License-Identifier: BSD-3-Clause
"""The directory of a run's checkpoints: one run writes to it, the newest and the best are kept."""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

from training import TrainingError
from training.checkpoint.reading import DamagedError, read
from training.checkpoint.weights import serialise, write
from training.files import is_temporary
from training.resuming import REMEDY, MismatchError

BEST = "best.pt"
DAMAGED = ".damaged"  # after the name of a checkpoint that was put aside
CHECKPOINT = re.compile(r"epoch-(\d{4,})-step-(\d{6,})\.pt")
OUTPUTS = (".pt", ".jsonl", ".png")  # of a run; temporary files with other endings are not touched


def checkpoint_name(epoch: int, step: int) -> str:
    """Return the name of the checkpoint after ``epoch`` epochs and ``step`` steps of the next."""
    return f"epoch-{epoch:04}-step-{step:06}.pt"


def read_name(name: str) -> tuple[int, int] | None:
    """Return the epochs and steps in the name of a checkpoint, None for another file."""
    match = CHECKPOINT.fullmatch(name)
    return match and (int(match[1]), int(match[2]))


def is_put_aside(name: str) -> bool:
    """Return whether a file is a checkpoint that was put aside because it is damaged."""
    return name.endswith(DAMAGED) and read_name(name[: -len(DAMAGED)]) is not None


class Checkpoints:
    """The checkpoints in ``directory``: the ``keep`` newest, and best.pt.

    ``epoch-0003-step-000120.pt`` was written after 3 epochs and 120 steps of the next.
    """

    def __init__(self, directory: Path, keep: int = 3):
        self.directory = directory
        self.keep = keep
        self.is_locked = False
        self.damaged: list[Path] = []  # or unfit, found by latest; put aside by the next save

    def paths(self) -> list[Path]:
        """Return all checkpoints but the best, oldest first."""
        found = [path for path in self.directory.iterdir() if read_name(path.name)]
        return sorted(found, key=lambda path: read_name(path.name))

    def prepare(self, *, restart: bool = False) -> None:
        """Make the directory; in it and its parent, delete the temporary files of runs that were killed.

        ``restart`` also deletes the checkpoints. Raises TrainingError if nothing can be written, or
        if another run writes there.
        """
        make_directory(self.directory.parent)
        make_directory(self.directory)
        self.lock()
        for folder in (self.directory.parent, self.directory):
            for path in folder.iterdir():
                if is_temporary(path, OUTPUTS):
                    path.unlink(missing_ok=True)
        if restart:
            damaged = [path for path in self.directory.iterdir() if is_put_aside(path.name)]
            for path in (*self.paths(), self.directory / BEST, *damaged):
                path.unlink(missing_ok=True)

    def lock(self) -> None:
        """Lock the directory for the lifetime of this object, if the file system supports it.

        Raises TrainingError if another run holds the lock: each would delete the other's checkpoints.
        """
        if self.is_locked:
            return
        descriptor = lock_directory(self.directory)
        weakref.finalize(self, os.close, descriptor)
        self.is_locked = True

    def save(self, state: Mapping, *, epoch: int, step: int, best: bool = False) -> Path:
        """Write ``state`` and, once it is complete on the disk, delete the oldest checkpoints.

        On a failure all files stay as they were, and TrainingError is raised.
        """
        content = serialise(state)
        while self.damaged:  # one of them may have the name of the new checkpoint
            path = self.damaged.pop()
            path.replace(path.with_name(path.name + DAMAGED))
        # best.pt comes first: a run that is killed between the two repeats the epoch, and writes it again.
        if best:
            write(self.directory / BEST, content)
        path = self.directory / checkpoint_name(epoch, step)
        write(path, content)
        paths = self.paths()
        until = paths.index(path) + 1
        for other in paths[: max(0, until - self.keep)]:
            other.unlink(missing_ok=True)
        return path

    def latest(self, most_bytes: int | None = None, fit: Callable[[dict], dict] = dict) -> dict | None:
        """Return what ``fit`` makes of the newest undamaged state, on the CPU; None if there is no checkpoint.

        Reports damaged ones, and those for which ``fit`` raises MismatchError. Raises TrainingError if no other
        one is left, or if one holds more than data, has more than ``most_bytes`` or cannot be read.
        """
        paths = self.paths()
        mismatch = None
        for path in reversed(paths):
            try:
                return fit(read(path, most_bytes))
            except DamagedError as error:
                fault = f"damaged ({error})"
            except MismatchError as error:
                fault = f"does not fit this run ({error})"
                mismatch = mismatch or f"{path}: {fault}"
            print(f"{path}: {fault}; trying the checkpoint before", flush=True)
            self.damaged.append(path)
        if mismatch:
            raise TrainingError(f"{mismatch}. Use the program that wrote it, {REMEDY}")
        if paths:
            raise TrainingError(
                f"{self.directory}: all {len(paths)} checkpoints are damaged. Restore one, "
                "or start from scratch with --restart"
            )
        return None

    def best(self) -> dict | None:
        """Return the state with the best accuracy, on the CPU; None if there is none.

        Raises TrainingError if it is damaged, holds more than data or cannot be read.
        """
        path = self.directory / BEST
        try:
            return read(path) if path.exists() else None
        except DamagedError as fault:
            raise TrainingError(f"{path}: damaged ({fault}). Use another checkpoint") from None


def lock_directory(directory: Path) -> int:
    """Lock ``directory``, if the file system supports it, and return a descriptor that holds the lock.

    Raises TrainingError if another run holds it: each would delete the other's checkpoints.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise TrainingError(
            f"{directory}: another run is writing there. Wait until it has ended, or choose another "
            "directory with --modelpath"
        ) from None
    except OSError:
        pass  # train without the lock: NFS, for example, locks no directory
    return descriptor


def make_directory(directory: Path) -> None:
    """Make ``directory`` with its parents; TrainingError if no file can be written in it.

    The trial file takes a moment and can save a training: in a container, a path that is
    not bound is read-only.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise TrainingError(
            f"{directory}: cannot be written ({error.strerror}). Choose another directory with "
            "--modelpath; in a container, one that is bound"
        ) from error


def open_checkpoints(options: argparse.Namespace, is_first: bool) -> Checkpoints:
    """Return the checkpoints below --modelpath, in a directory that the first rank makes."""
    checkpoints = Checkpoints(options.modelpath / "checkpoints", options.keep)
    if is_first:
        checkpoints.prepare(restart=options.restart)
    return checkpoints
