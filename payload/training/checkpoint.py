# SPDX-License-Identifier: BSD-3-Clause
"""Checkpoints of a training, each one file that rank 0 writes, completely or not at all, and all ranks read."""

from __future__ import annotations

import argparse
import errno
import fcntl
import os
import pickle
import re
import shutil
import socket
import tempfile
import weakref
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel

from training import TrainingError
from training.distributed import World, broadcast, fail_together, gather
from training.files import INCOMPLETE, temporary_name, write_file, writing
from training.finite import check_weights
from training.run import Position, Run
from training.state import REMEDY, check_identity, gather_state, load_state
from training.values import dump, in_one_line

__all__ = ["Checkpoints", "Position", "Run", "open_checkpoints", "save_model"]  # what programs import from here

BEST = "best.pt"
# The memory of a mapped file is the page cache's, once for all ranks of a node.
MAPPED = {"mmap": True} if torch.__version__ >= "2.1" else {}


class Checkpoints:
    """A directory of checkpoints, the ``keep`` newest of which stay. All ranks call its methods, and must see it.

    Each is one file that rank 0 writes: ``epoch-0003-step-000120.pt`` is after 3 epochs and 120 steps, and best.pt
    after the best epoch.
    """

    pattern = re.compile(r"epoch-\d{4,}-step-\d{6,}\.pt")

    def __init__(self, directory: Path, world: World, *, keep: int = 3):
        self.directory = Path(directory)
        self.world = world
        self.keep = keep
        self.is_locked = False
        self.is_first = True  # no checkpoint has been written

    def paths(self) -> list[Path]:
        """Return all checkpoints but the best, oldest first."""
        found = [path for path in self.directory.glob("*") if self.pattern.fullmatch(path.name)]
        return sorted(found, key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)])

    def prepare(self, *, restart: bool = False) -> None:
        """Make and lock the directory; delete what killed runs left; ``restart`` also deletes the checkpoints.

        Raises TrainingError if nothing can be written, or if another run writes there.
        """
        with fail_together(self.world):
            if self.world.rank == 0:
                make_directory(self.directory)
                self.lock()
                left = [*self.directory.glob(INCOMPLETE), *self.directory.parent.glob(INCOMPLETE)]
                if restart:
                    left += [*self.paths(), self.directory / BEST]
                for path in left:
                    delete(path)

    def lock(self) -> None:
        """Lock the directory for the life of this object; TrainingError if another run holds the lock."""
        if self.is_locked:
            return
        descriptor = os.open(self.directory, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrainingError(
                f"{self.directory}: another run is writing there. Wait until it has ended, or choose another "
                "directory with --modelpath"
            ) from None
        except OSError:
            pass  # train without the lock: NFS, for example, locks no directory
        self.is_locked = True

    def collect(self, run: Run) -> Any:
        """Return, on rank 0, the state of a run as a checkpoint holds it; all ranks call it."""
        return gather_state(run)

    def check(self, run: Run) -> None:
        """Raise TrainingError, before the first step, if a checkpoint cannot hold a value of the run, and name it."""
        with fail_together(self.world):
            if any(isinstance(module, FullyShardedDataParallel) for module in run.network.modules()):
                raise TrainingError("network: FullyShardedDataParallel cannot be saved. Use fully_shard in its place")
        with torch.random.fork_rng(devices=[]):  # state_dict() of a data loader draws a number
            self.collect(run)

    def save(self, run: Run) -> str:
        """Write a checkpoint, also as best.pt after the best epoch; return its path.

        If a parameter is not a finite number, all ranks end, and the checkpoints stay as they are.
        """
        check_weights(run.network.parameters(), self.world)
        state = self.collect(run)
        here = run.position
        path = self.directory / f"epoch-{here.epoch:04}-step-{here.step:06}.pt"
        with fail_together(self.world):
            if state:
                self.write(path, state, is_best=here.step == 0 and here.epoch == here.best_epoch > 0)
        return str(path)

    def write(self, path: Path, state: Mapping, *, is_best: bool) -> None:
        """Write ``state`` and, once it is complete on the disk, delete the oldest checkpoints.

        The first one is read. On a failure all other files stay as they were, and TrainingError is raised.
        """
        content = dump(state)
        files = [path]
        if is_best:  # it comes first: a run that is killed between the two repeats the epoch, and writes it again
            files.insert(0, self.directory / BEST)
        for file in files:
            with writing(file):
                write_file(file, content)
        if self.is_first:
            read(path)
            self.is_first = False
        self.delete_outdated(path)

    def delete_outdated(self, newest: Path) -> None:
        """Delete the oldest checkpoints, but never ``newest``: those after it are damaged."""
        for path in self.paths()[: -self.keep]:
            if path != newest:
                delete(path)

    def resume(self, run: Run) -> str | None:
        """Continue a run from the newest checkpoint that is undamaged, and return its path; None without any.

        Raises TrainingError if all are damaged.
        """
        faults = []
        for path in reversed(broadcast(self.paths(), self.world)):
            with fail_together(self.world), loading(path):
                fault = self.find_damage(path)
            found = [each for each in broadcast(gather(fault, self.world), self.world) if each]
            if not found:
                self.load(run, path)
                return str(path)
            faults.append(f"{path}: damaged ({found[0]})")
            if self.world.rank == 0:
                print(f"{faults[-1]}; trying the checkpoint before", flush=True)
        with fail_together(self.world):
            if faults:
                raise TrainingError(f"{faults[0]}, and no other checkpoint is left. Restore one, {REMEDY}")
        return None

    def find_damage(self, path: Path) -> str | None:
        """Return what is wrong with a checkpoint, as this rank finds; raise OSError if it cannot be read."""
        if self.world.rank > 0:
            return None
        return damage_of(path)

    def load(self, run: Run, path: Path) -> None:
        """Continue a run from a checkpoint."""
        with fail_together(self.world), loading(path):
            state = read(path)
            check_identity(path, state, run)
            load_state(run, state, {})


def open_checkpoints(options: argparse.Namespace, world: World) -> Checkpoints | None:
    """Return the checkpoints below --modelpath, in a directory that rank 0 makes; None without --modelpath."""
    if not options.modelpath:
        return None
    checkpoints = Checkpoints(options.modelpath / "checkpoints", world, keep=options.keep)
    checkpoints.prepare(restart=options.restart)
    return checkpoints


def delete(path: Path) -> None:
    """Delete a file, or a directory: at once, as readers see it; the next start deletes what is left of it."""
    if path.is_symlink() or not path.is_dir():
        return path.unlink(missing_ok=True)
    return shutil.rmtree(path.rename(temporary_name(path)), ignore_errors=True)


def make_directory(directory: Path, option: str = "--modelpath") -> None:
    """Make ``directory``, which ``option`` names, with its parents; TrainingError if no file can be written in it."""
    with writing(directory, option):
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass


def save_model(state: Mapping[str, Tensor], path: Path) -> None:
    """Write the weights ``state`` to ``path`` as CPU tensors, completely or not at all."""
    with writing(path):
        write_file(path, dump({name: tensor.cpu() for name, tensor in state.items()}))


def damage_of(path: Path) -> str | None:
    """Return what is wrong with a file, if anything; raises OSError or TrainingError if it cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            wrong = archive.testzip()  # torch.load does not compare the checksums
            names = archive.namelist()
        if wrong:
            return f"wrong checksum of {wrong}"
        # torch before 2.6 runs a program of TorchScript although it is to load weights only (CVE-2025-32434)
        if torch.__version__ < "2.6" and any(name.endswith("constants.pkl") for name in names):
            return "it is a program, and nothing in it was executed"
        read(path)
    except (TrainingError, MemoryError):
        raise
    except Exception as error:  # for damaged files zipfile and torch raise a dozen types
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # EINVAL: a place before the start
            raise
        return in_one_line(error)
    return None


def read(path: Path) -> dict:
    """Return the state in ``path``, on the CPU, as tensors that are mapped from the file; no code in it runs.

    Raises TrainingError if this node does not see it, or torch cannot read it, and torch's errors if it is damaged.
    """
    if not path.exists():
        raise TrainingError(f"{path}: not found on {socket.gethostname()}. All nodes must see the same directory")
    try:
        return torch.load(str(path), map_location="cpu", weights_only=True, **MAPPED)
    except pickle.UnpicklingError as error:
        raise TrainingError(
            f"{path}: torch {torch.__version__} cannot read it, and nothing in it was executed "
            f"({in_one_line(error)}). Use the program that wrote it, {REMEDY}"
        ) from error


@contextmanager
def loading(path: Path) -> Iterator[None]:
    """Raise TrainingError, with the reason, if the ``with`` block cannot read ``path``, or load its state."""
    try:
        yield
    except (TrainingError, MemoryError):
        raise
    except OSError as error:
        raise TrainingError(
            f"{path}: cannot be read ({error.strerror}). Nothing was changed: start again when it can be read"
        ) from error
    except Exception as error:  # torch, and the objects in ``extra``, raise a dozen types
        raise TrainingError(
            f"{path}: does not fit this run ({in_one_line(error)}). Use the same program and options, {REMEDY}"
        ) from error
