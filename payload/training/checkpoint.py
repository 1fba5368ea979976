"""Checkpoints and the trained model on disk: whole or not there at all, and read without trust.

In mnist_ddp.py all ranks call the methods of ``Run``; rank 0 alone calls what touches files.
"""

from __future__ import annotations

import fcntl
import io
import os
import pickle
import pickletools
import re
import tempfile
import weakref
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from training import TrainingError
from training.distributed import World, broadcast, fail_together, gather
from training.files import read_file, write_file
from training.resuming import Extent, MismatchError, describe, fit, fit_optimizer, fit_position, is_equal

CHECKPOINT = re.compile(r"epoch-\d{4,}-step-\d{6,}\.pt")
TEMPORARY = re.compile(r"\..+\.(pt|jsonl|png)\.[0-9a-f]{8}")
# What the pickle of tensors, numbers, strings, lists and dicts refers to: torch/_utils.py, torch/storage.py.
GLOBALS = re.compile(
    r"torch \w+Storage|torch\.storage UntypedStorage|torch (b?float|u?int|complex|bool)\w*|"
    r"torch\._utils _rebuild_(tensor_v[23]|parameter)|collections (OrderedDict|Counter)"
)
MOST_OPCODES = 5_000_000  # of the pickle in a checkpoint: a tensor has about 25, so 200,000 tensors
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


class DamagedError(Exception):
    """A file is not what was written; its text says in which way."""


class RefusedError(Exception):
    """A file is whole, but not what torch.save writes of data; its text says why."""


DATA_ALONE = "it holds more than tensors, numbers, strings, lists and dicts"


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


def read(path: Path, most_bytes: int | None = None) -> dict:
    """Return the state in ``path``, on the CPU, and ``path`` as its "file"; run no code that is in it.

    Raises DamagedError where a byte is not as it was written, TrainingError where there is more
    than tensors, numbers, strings, lists and dicts, or more than ``most_bytes``, and where the file
    cannot be read.
    """
    try:
        content = read_file(path, most_bytes)
    except OSError as error:  # which says nothing about the file: a disk or a server is out of reach
        raise TrainingError(
            f"{path}: cannot be read ({error.strerror}); start again when it can be, nothing was changed"
        ) from error
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            check_archive(archive, content)
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (RefusedError, pickle.UnpicklingError) as fault:
        what = fault if isinstance(fault, RefusedError) else DATA_ALONE
        raise TrainingError(
            f"{path}: refused, and nothing in it was run: {what}; delete it unless you trust where it comes from"
        ) from None
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


def check_archive(archive: zipfile.ZipFile, content: bytes) -> None:
    """Look at the parts of a checkpoint, whose bytes are ``content``, before torch does.

    Raises DamagedError for what torch.save does not write: wrong checksums, parts that expand. Raises
    RefusedError where the pickle refers to more than data.
    """
    # The mark of TorchScript, a program: torch before 2.6 loads it even with weights_only
    # (CVE-2025-32434). In an archive names are never compressed.
    if b"constants.pkl" in content:
        raise RefusedError(DATA_ALONE)
    parts = archive.infolist()
    if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
        raise DamagedError("its parts are compressed")
    if sum(part.file_size for part in parts) > len(content):
        raise DamagedError("its parts are larger than the file")
    damaged = archive.testzip()  # the checksums, which torch.load does not look at
    if damaged:
        raise DamagedError(f"wrong checksum of {damaged}")
    pickled = [part for part in parts if part.filename.endswith("/data.pkl")]
    if len(pickled) != 1:
        raise DamagedError("not of torch.save")
    for count, (opcode, argument, _) in enumerate(pickletools.genops(archive.read(pickled[0]))):
        if count > MOST_OPCODES:
            raise RefusedError(f"it holds more than {MOST_OPCODES} values")
        if opcode.name in ("INST", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4") or (
            opcode.name == "GLOBAL" and not GLOBALS.fullmatch(argument)
        ):
            raise RefusedError(DATA_ALONE)


def serialise(state: Mapping) -> memoryview:
    """Return ``state`` as the bytes of a file for ``torch.load``."""
    content = io.BytesIO()  # on a full disk torch.save itself hides the reason: "unexpected pos"
    torch.save(dict(state), content)
    return content.getbuffer()


def write(path: Path, content: memoryview) -> None:
    """Write ``content`` to ``path`` as ``write_file`` does; TrainingError on a failure."""
    try:
        write_file(path, content)
    except OSError as error:
        raise TrainingError(
            f"{path}: cannot be written ({error.strerror}); what was there before is whole: free some "
            "space and start again, or name another directory with --modelpath"
        ) from error


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
    try:
        network.load_state_dict(without_prefixes(state))
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip()
        raise TrainingError(
            f"the weights are of another network ({first}); start with the options and the program "
            "that they were made with"
        ) from None


def without_prefixes(state):
    """Return ``state`` by the names of the network that DistributedDataParallel or torch.compile wrapped."""
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        return state
    for prefix in ("module.", "_orig_mod.", "module."):  # either may be around the other
        if state and all(name.startswith(prefix) for name in state):
            state = {name[len(prefix) :]: tensor for name, tensor in state.items()}
    return state
