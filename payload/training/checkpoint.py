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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training import TrainingError
from training.distributed import World, broadcast, fail_together, gather
from training.files import INCOMPLETE, reading, temporary_name, write_file, writing
from training.finite import check_weights
from training.run import Position, Run
from training.state import (
    REMEDY,
    check_values,
    gather_values,
    is_trained,
    load_network,
    load_optimizer,
    load_values,
    network_state,
    random_state,
    set_random_state,
)
from training.values import dump, encode, in_one_line, read_back

__all__ = ["Checkpoints", "Position", "Run", "open_checkpoints", "save_model"]  # what programs import from here

BEST = "best.pt"
PARTS = ("model", "optimizer", "schedule", "position", "random", "settings")
# The memory of a mapped file is the page cache's, once for all ranks of a node.
MAPPED = {"mmap": True} if torch.__version__ >= "2.1" else {}


class UnusableError(Exception):
    """A checkpoint is damaged; the text tells why."""


def damaged(reason: str) -> UnusableError:
    return UnusableError(f"damaged ({reason})")


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
        self.unusable: set[Path] = set()  # not written again since

    def paths(self) -> list[Path]:
        """Return all checkpoints but the best, oldest first."""
        found = [path for path in self.directory.iterdir() if self.pattern.fullmatch(path.name)]
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

    def check(self, run: Run) -> None:
        """Raise TrainingError, before the first step, if a checkpoint cannot hold a value of the run, and name it."""
        random = random_state(self.world.device)
        values = gather_values(run)
        with fail_together(self.world):
            network_state(run.network)
            groups = encode(run.optimizer.state_dict()["param_groups"], "optimizer: param_groups")
            if values:
                states = values.pop("extra")
                own = [state for name, state in states.items() if not is_trained(run.extra[name])]
                read_back([values, groups, own], "settings, schedule or extra")
        set_random_state(random, self.world.device)  # state_dict() of a data loader draws a number

    def save(self, run: Run) -> str:
        """Write a checkpoint, also as best.pt after the best epoch; return its path.

        If a parameter is not a finite number, all ranks end, and the checkpoints stay as they are.
        """
        check_weights(run.network.parameters(), self.world)
        values = gather_values(run)
        here = run.position
        path = self.directory / f"epoch-{here.epoch:04}-step-{here.step:06}.pt"
        with fail_together(self.world):
            if values:
                optimizer = encode(run.optimizer.state_dict(), "optimizer")
                state = {"model": network_state(run.network), "optimizer": optimizer, **values}
                self.write(path, state, is_best=here.step == 0 and here.epoch == here.best_epoch)
        return str(path)

    def write(self, path: Path, state: Mapping, *, is_best: bool = False) -> None:
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
        """Delete, up to ``newest``, the oldest checkpoints, and those that could not be used."""
        self.unusable.discard(newest)
        paths = self.paths()
        if newest not in paths:  # another process deleted it
            return
        paths = paths[: paths.index(newest) + 1]
        kept = [path for path in paths if path not in self.unusable][-self.keep :]
        for path in paths:
            if path not in kept:
                delete(path)

    def newest(self, load: Callable[[Path], Any]) -> Any:
        """Return what ``load`` makes of the newest checkpoint for which it raises no UnusableError; None without any.

        Rank 0 reports the others. If there is no other checkpoint, it raises TrainingError, and the other ranks exit.
        """
        faults = []
        with fail_together(self.world):
            paths = self.paths() if self.world.rank == 0 else []
        for path in reversed(broadcast(paths, self.world)):
            try:
                return load(path)
            except UnusableError as error:
                faults.append(f"{path}: {error}")
                self.unusable.add(path)
                if self.world.rank == 0:
                    print(f"{faults[-1]}; trying the checkpoint before", flush=True)
        with fail_together(self.world):
            if faults and self.world.rank == 0:
                raise TrainingError(f"{faults[0]}, and no other checkpoint is left. Restore one, {REMEDY}")
        return None

    def load(self, run: Run, path: Path) -> str:
        """Continue a run from a checkpoint, and return its path; UnusableError, on all ranks, if it is damaged."""

        def check() -> None:
            if self.world.rank == 0:
                check_file(path)

        self.agree(check)
        state = self.agree(lambda: read(path))
        with fail_together(self.world):
            missing = [part for part in PARTS if part not in state]
            if missing:
                raise TrainingError(
                    f"{path}: written by another program: it has no {', '.join(missing)}. Choose another directory "
                    "with --modelpath"
                )
            check_values(path, state, run)
            with fitting(path):
                load_network(run.network, state["model"])
                load_optimizer(run.optimizer, state["optimizer"])
                load_values(state, run)
        return str(path)

    def agree(self, decide: Callable[[], Any]) -> Any:
        """Return what ``decide`` returns on this rank; an UnusableError of one is raised on all."""
        result = fault = None
        with fail_together(self.world):
            try:
                result = decide()
            except UnusableError as error:
                fault = error
        for each in filter(None, broadcast(gather(fault, self.world), self.world)):
            raise each
        return result


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


def check_file(path: Path) -> None:
    """Raise UnusableError if the file is incomplete or changed, TrainingError if it cannot be read."""
    with reading(path):
        try:
            with zipfile.ZipFile(path) as archive:
                wrong = archive.testzip()  # torch.load does not compare the checksums
                names = archive.namelist()
        except MemoryError:
            raise
        except Exception as error:  # for damaged files zipfile raises a dozen types
            if isinstance(error, OSError) and error.errno != errno.EINVAL:  # EINVAL: a place before the start
                raise
            raise damaged(in_one_line(error)) from error
    if wrong:
        raise damaged(f"wrong checksum of {wrong}")
    # torch before 2.6 runs a program of TorchScript although it is to load weights only (CVE-2025-32434)
    if torch.__version__ < "2.6" and any(name.endswith("constants.pkl") for name in names):
        raise damaged("it is a program, and nothing in it was executed")


def read(path: Path) -> dict:
    """Return the state in ``path``, on the CPU, as tensors that are mapped from the file; no code in it runs.

    Raises UnusableError if it is damaged, TrainingError if it cannot be read.
    """
    if not path.exists():
        raise TrainingError(f"{path}: not found on {socket.gethostname()}. All nodes must see the same directory")
    with reading(path):
        try:
            return torch.load(str(path), map_location="cpu", weights_only=True, **MAPPED)
        except (OSError, MemoryError):
            raise
        except pickle.UnpicklingError as error:
            raise TrainingError(
                f"{path}: torch {torch.__version__} cannot read it, and nothing in it was executed "
                f"({in_one_line(error)}). Use the program that wrote it, {REMEDY}"
            ) from error
        except Exception as error:  # for damaged files torch raises a dozen types
            raise damaged(in_one_line(error)) from error


@contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Raise TrainingError, with the reason, if the ``with`` block cannot load the state in ``path``."""
    try:
        yield
    except TrainingError:
        raise
    except Exception as error:  # torch, and the objects in ``extra``, raise a dozen types
        raise TrainingError(
            f"{path}: does not fit this run ({in_one_line(error)}). Use the same program and options, {REMEDY}"
        ) from error
