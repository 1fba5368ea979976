"""Checkpoints and the trained model on disk: whole or not there at all, and read without trust.

In mnist_ddp.py all ranks call the methods of ``Run``; rank 0 alone calls what touches files.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import pickle
import re
import secrets
import tempfile
import weakref
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from training import TrainingError
from training.distributed import World, broadcast, fail_together, gather

CHECKPOINT = re.compile(r"epoch-\d{4,}-step-\d{6,}\.pt")
TEMPORARY = re.compile(r"\..+\.(pt|jsonl|png)\.[0-9a-f]{8}")


@dataclass
class Position:
    """How far a training is: ``epoch`` epochs, and ``step`` steps of the next.

    ``samples`` and ``loss_sum`` are those of these steps, over all ranks; ``seconds`` is the time
    spent in training; the accuracies, in per cent, are of the last epoch and of the best, which is
    the first that reached as much and number ``best_epoch``.
    """

    epoch: int = 0
    step: int = 0
    samples: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0
    accuracy: float = 0.0
    best_accuracy: float = 0.0
    best_epoch: int = 0

    def end_epoch(self, accuracy: float) -> None:
        """Stand at the beginning of the next epoch, after one that ended with ``accuracy``."""
        self.epoch += 1
        self.step = self.samples = 0
        self.loss_sum = 0.0
        self.accuracy = accuracy
        if self.epoch == 1 or accuracy > self.best_accuracy:
            self.best_accuracy, self.best_epoch = accuracy, self.epoch


class Run:
    """What a checkpoint holds, and what goes on from one. All ranks must call its methods.

    ``settings`` are the options, by the names that people know, that make it this run and no other.
    """

    def __init__(self, network: nn.Module, optimizer, schedule, settings: Mapping, world: World):
        self.network = network
        self.optimizer = optimizer
        self.schedule = schedule
        self.settings = settings
        self.world = world
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
                state = checkpoints.latest()
        # One rank reads for all: not all may see the same files at the same moment.
        state = broadcast(state, self.world)
        with fail_together(self.world):
            if state:
                self.restore(state)
        return state and state["file"]

    def state(self) -> dict:
        """Return what a checkpoint holds; the random states are those of all ranks on rank 0."""
        random = {"cpu": torch.get_rng_state()}
        if self.world.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.world.device)
        return {
            "model": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "position": asdict(self.position),
            "random": gather(random, self.world),
            "settings": dict(self.settings),
            "torch": str(torch.__version__),
        }

    def restore(self, state: Mapping) -> None:
        """Take over a ``state`` that Checkpoints read; TrainingError where it is of another run.

        In a world of another size the ranks keep the random states that they were seeded with:
        there is no telling whose is whose.
        """
        missing = {"model", "optimizer", "schedule", "position", "random", "settings"} - state.keys()
        if missing:
            raise TrainingError(
                f"{state['file']}: has no {', '.join(sorted(missing))}, so it is of another program; "
                "name another directory with --modelpath"
            )
        saved = state["settings"]
        changed = [
            f"{name} {saved.get(name)} (now {self.settings.get(name)})"
            for name in {**saved, **self.settings}
            if saved.get(name) != self.settings.get(name)
        ]
        if changed:
            raise TrainingError(
                f"{state['file']}: made with {', '.join(changed)}; start with the same options, name "
                "another directory with --modelpath, or begin anew with --restart"
            )
        load_model(self.network, state["model"])
        for saved, group in zip(state["optimizer"]["param_groups"], self.optimizer.param_groups):
            if "fused" in group:  # what this machine and its torch can do, not the one before
                saved["fused"] = group["fused"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.position = Position(**state["position"])
        if len(state["random"]) == self.world.size:
            random = state["random"][self.world.rank]
            torch.set_rng_state(random["cpu"])
            if "cuda" in random and self.world.device.type == "cuda":
                torch.cuda.set_rng_state(random["cuda"], self.world.device)


class DamagedError(Exception):
    """A file is not what was written; its text says in which way."""


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

    def latest(self) -> dict | None:
        """Return the newest state that is whole, on the CPU; None if there is no checkpoint at all.

        Says so where one is damaged. Raises TrainingError where all are, and where one holds more
        than data or cannot be read.
        """
        paths = self.paths()
        for path in reversed(paths):
            try:
                return read(path)
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


def read(path: Path) -> dict:
    """Return the state in ``path``, on the CPU, and ``path`` as its "file"; run no code that is in it.

    Raises DamagedError where a byte is not as it was written, TrainingError where there is more
    than tensors, numbers, strings, lists and dicts, and where the file cannot be read.
    """
    refused = TrainingError(
        f"{path}: refused, and nothing in it was run: it holds more than tensors, numbers, strings, "
        "lists and dicts; delete it unless you trust where it comes from"
    )
    try:
        content = path.read_bytes()
    except OSError as error:  # which says nothing about the file: a disk or a server is out of reach
        raise TrainingError(
            f"{path}: cannot be read ({error.strerror}); start again when it can be, nothing was changed"
        ) from error
    # The mark of TorchScript, a program: torch before 2.6 loads it even with weights_only
    # (CVE-2025-32434). In an archive names are never compressed.
    if b"constants.pkl" in content:
        raise refused
    try:
        content = io.BytesIO(content)
        with zipfile.ZipFile(content) as archive:
            damaged = archive.testzip()  # the checksums, which torch.load does not look at
        if damaged:
            raise DamagedError(f"wrong checksum of {damaged}")
        content.seek(0)
        state = torch.load(content, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise refused from None
    except DamagedError:
        raise
    except (MemoryError, RuntimeError) as error:
        # the second is torch's own allocator, c10/core/impl/alloc_cpu.cpp
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            raise TrainingError(
                f"{path}: there is not enough memory to read it; ask for more, nothing was changed"
            ) from error
        raise DamagedError(str(error).splitlines()[0]) from error
    except Exception as error:  # zipfile and torch have a dozen kinds of them for damaged files
        raise DamagedError(str(error).splitlines()[0] if str(error) else type(error).__name__) from error
    if not isinstance(state, dict):
        raise DamagedError("not a checkpoint")
    return {**state, "file": str(path)}


def serialise(state: Mapping) -> memoryview:
    """Return ``state`` as the bytes of a file for ``torch.load``."""
    content = io.BytesIO()  # on a full disk torch.save itself hides the reason: "unexpected pos"
    torch.save(dict(state), content)
    return content.getbuffer()


def write(path: Path, content: memoryview) -> None:
    """Write ``content`` to ``path``; a reader sees the old file or the new one, never a part.

    On a failure the old file stays, nothing else is left behind, and TrainingError is raised.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("x+b") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            # What is read back comes from the disk, not from the host's memory.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            if file.read() != content:
                raise OSError(errno.EIO, "other bytes were read back than were written")
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise TrainingError(
            f"{path}: cannot be written ({error.strerror}); what was there before is whole: free some "
            "space and start again, or name another directory with --modelpath"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Bring the names in ``directory`` to the disk, so that a new one outlives a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # this file system has no such thing: fsync(2)
            raise
    finally:
        os.close(descriptor)


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


def save_model(state: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write ``state`` to ``path`` for ``torch.load``, as CPU tensors, as ``write`` does."""
    write(path, serialise({name: tensor.cpu() for name, tensor in state.items()}))


def load_model(network: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Give ``network`` the weights in ``state``, with or without the prefixes of what it was wrapped in.

    Those are of DistributedDataParallel and torch.compile; ``network`` may be wrapped in the first
    or not. Raises TrainingError where they are of another network.
    """
    if isinstance(network, DistributedDataParallel):
        network = network.module
    for prefix in ("module.", "_orig_mod.", "module."):  # either may be around the other
        if state and all(name.startswith(prefix) for name in state):
            state = {name[len(prefix) :]: tensor for name, tensor in state.items()}
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip()
        raise TrainingError(
            f"the weights are of another network ({first}); start with the options and the program "
            "that they were made with"
        ) from None
