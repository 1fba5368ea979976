"""The directory of a run's checkpoints: their names, which are kept, and that one run writes at a time."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path

from training import TrainingError
from training.checkpoint.reading import DamagedError, read
from training.checkpoint.writing import serialise, write

CHECKPOINT = re.compile(r"epoch-\d{4,}-step-\d{6,}\.pt")
TEMPORARY = re.compile(r"\..+\.(pt|jsonl|png)\.[0-9a-f]{8}")


class Checkpoints:
    """The checkpoints in ``directory``: the ``keep`` newest, and best.pt.

    ``epoch-0003-step-000120.pt`` was written when 3 epochs and 120 steps of the next were done.
    """

    def __init__(self, directory: Path, keep: int = 3):
        self.directory = directory
        self.keep = keep
        self.locked = False
        self.damaged: list[Path] = []  # found by latest, put aside by the next save

    def paths(self) -> list[Path]:
        """Return all checkpoints but the best, oldest first."""
        found = [path for path in self.directory.iterdir() if CHECKPOINT.fullmatch(path.name)]
        return sorted(found, key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)])

    def prepare(self, *, restart: bool = False) -> None:
        """Make the directory and clear away what a killed run left half written in it and above.

        ``restart`` deletes the checkpoints too. Raises TrainingError if nothing can be written, or
        if another run is writing there.
        """
        make_directory(self.directory.parent)
        make_directory(self.directory)
        self.lock()
        for folder in (self.directory.parent, self.directory):
            for path in folder.iterdir():
                if TEMPORARY.fullmatch(path.name):
                    path.unlink(missing_ok=True)
        if restart:
            damaged = self.directory.glob("epoch-*.pt.damaged")
            for path in (*self.paths(), self.directory / "best.pt", *damaged):
                path.unlink(missing_ok=True)

    def lock(self) -> None:
        """Hold the directory as long as this object lives, where the file system has locks.

        Raises TrainingError if another run holds it: each would delete the other's checkpoints.
        """
        if self.locked:
            return
        descriptor = os.open(self.directory, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.locked = True
        except BlockingIOError:
            raise TrainingError(
                f"{self.directory}: another run is writing there; wait for its end, or name another "
                "directory with --modelpath"
            ) from None
        except OSError:
            return  # a run is worth more than the lock: NFS, for one, locks no directory

    def save(self, state: Mapping, *, epoch: int, step: int, best: bool = False) -> Path:
        """Write ``state``; only once it is whole on the disk, drop the oldest.

        On a failure what was there before stays, nothing else does, and TrainingError is raised.
        """
        content = serialise(state)
        while self.damaged:  # one of them may have the name of what is written here
            path = self.damaged.pop()
            path.replace(path.with_name(f"{path.name}.damaged"))
        # The best comes first: a run that is killed in between repeats the epoch, and the best of it.
        if best:
            write(self.directory / "best.pt", content)
        path = self.directory / f"epoch-{epoch:04}-step-{step:06}.pt"
        write(path, content)
        paths = self.paths()
        until = paths.index(path) + 1
        for other in paths[: max(0, until - self.keep)]:
            other.unlink(missing_ok=True)
        return path

    def latest(self, most_bytes: int | None = None) -> dict | None:
        """Return the newest state that is whole, on the CPU; None if there is no checkpoint at all.

        Says so where one is damaged. Raises TrainingError where all are, and where one holds more
        than data, has more than ``most_bytes`` or cannot be read.
        """
        paths = self.paths()
        for path in reversed(paths):
            try:
                return read(path, most_bytes)
            except DamagedError as fault:
                print(f"{path}: damaged ({fault}); going back to the checkpoint before", flush=True)
                self.damaged.append(path)
        if paths:
            raise TrainingError(
                f"{self.directory}: none of the {len(paths)} checkpoints is whole; copy one back, "
                "or begin anew with --restart"
            )
        return None

    def best(self) -> dict | None:
        """Return the state with the best accuracy, on the CPU; None if there is none.

        Raises TrainingError where it is damaged, holds more than data or cannot be read.
        """
        path = self.directory / "best.pt"
        try:
            return read(path) if path.exists() else None
        except DamagedError as fault:
            raise TrainingError(f"{path}: damaged ({fault}); take another checkpoint") from None


def make_directory(directory: Path) -> None:
    """Make ``directory`` with its parents; TrainingError if no file can be written in it.

    Trying it out costs a moment before the training, and spares the loss of one: inside a
    container a path that is not bound is read-only.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise TrainingError(
            f"{directory}: cannot be written ({error.strerror}); name another directory with "
            "--modelpath, in a container one that is bound"
        ) from error
