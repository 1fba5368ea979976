# SPDX-License-Identifier: BSD-3-Clause
"""Checkpoints of a training, each one file, and its weights: written completely or not at all, read without trust."""

from __future__ import annotations

import argparse
import copy
import fcntl
import io
import math
import os
import re
import secrets
import shutil
import tempfile
import weakref
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from training import NOT_FINITE, TrainingError
from training.accelerator import module_of
from training.distributed import World, broadcast, fail_together, gather
from training.files import TEMPORARY, read_file, remedy_for, write_file
from training.finite import are_finite, check_weights

BEST = "best.pt"
OUTPUTS = (".pt", ".jsonl", ".png")  # of a run; temporary files with other endings are not touched
PARTS = {"model", "optimizer", "schedule", "position", "random", "settings"}
REMEDY = "choose another directory with --modelpath, or start from scratch with --restart"
MOST_BYTES = 8, 2**26  # for each byte of the weights, and for the random states of all ranks
OWN_OPTIONS = ("fused", "foreach")  # of an optimizer: they depend on the machine and on torch


class DamagedError(Exception):
    """A file is not what torch.save wrote for data alone; the text tells why."""


class MismatchError(Exception):
    """A part of a checkpoint does not fit this run; the text names it."""


class Extent(NamedTuple):
    """The length of a training: its epochs, the steps and the samples of an epoch."""

    epochs: int
    steps: int
    samples: int

    def holds(self, position: Mapping, steps_taken: int | None) -> bool:
        """Return whether a saved position is within a training of this length, after ``steps_taken``, if known."""
        epoch, step = position["epoch"], position["step"]
        is_within = position["best_epoch"] <= epoch <= self.epochs and step < (self.steps if epoch < self.epochs else 1)
        has_samples = step <= position["samples"] <= self.samples
        return is_within and has_samples and steps_taken in (None, epoch * self.steps + step)


@dataclass
class Position:
    """How far a training is: ``epoch`` epochs, and ``step`` steps of the next.

    ``samples`` and ``loss_sum`` are those of these steps, over all ranks, ``epoch_seconds`` their time; ``seconds`` is
    the time of all training. The accuracies, in per cent, are of the last epoch and of the best, the first of equals.
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
        """Move to the start of the next epoch, after one that reached ``accuracy``."""
        self.epoch += 1
        self.step = self.samples = 0
        self.loss_sum = self.epoch_seconds = 0.0
        self.accuracy = accuracy
        if self.epoch == 1 or accuracy > self.best_accuracy:
            self.best_accuracy, self.best_epoch = accuracy, self.epoch


@dataclass
class Run:
    """A network with what trains it, and its position. All ranks must call its methods.

    ``settings`` are the options that identify this run, by the names that messages show; ``data`` is a fingerprint of
    the samples, on rank 0; ``extent`` limits the position.
    """

    network: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    settings: Mapping
    world: World
    extent: Extent | None = None
    data: str | None = None
    position: Position = field(default_factory=Position)

    def save(self, checkpoints: Checkpoints | None) -> Path | None:
        """Write a checkpoint, also as best.pt after the best epoch; return its path on rank 0. Without any, do nothing.

        If a weight is not a finite number, all ranks end, and the checkpoints stay as they are.
        """
        if not checkpoints:
            return None
        check_weights(self.network.state_dict().values(), self.world)
        random, here, path = gather(random_state(self.world.device), self.world), self.position, None
        with fail_together(self.world):
            if self.world.rank == 0:
                state = {
                    "model": self.network.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                    "schedule": self.schedule.state_dict(),
                    "settings": dict(self.settings),
                    "data": self.data,
                    "position": asdict(here),
                    "random": random,
                    "torch": str(torch.__version__),
                }
                is_best = here.step == 0 and here.epoch == here.best_epoch
                path = checkpoints.save(state, epoch=here.epoch, step=here.step, best=is_best)
        return path

    def resume(self, checkpoints: Checkpoints | None) -> str | None:
        """Continue from the newest checkpoint that is undamaged and fits; return its file, None if there is none.

        The number of ranks may differ from that of the checkpoint. If the checkpoint is of another run, one
        rank raises TrainingError and the others exit.
        """
        state = None
        with fail_together(self.world):
            if self.world.rank == 0 and checkpoints:
                size = sum(tensor.numel() * tensor.element_size() for tensor in self.network.state_dict().values())
                state = checkpoints.latest(MOST_BYTES[0] * size + MOST_BYTES[1], self.fit)
        state = broadcast(state, self.world)  # only rank 0 reads: the ranks may see different files at the same moment
        with fail_together(self.world):
            if state:
                self.network.load_state_dict(state["model"])
                self.optimizer.load_state_dict(state["optimizer"])
                self.schedule.load_state_dict(state["schedule"])
                self.position = Position(**state["position"])
                if state["random"]:
                    set_random_state(state["random"][self.world.rank], self.world.device)
        return state and state["file"]

    def fit(self, state: Mapping) -> dict:
        """Return the parts of a ``state`` that this run can load, before any of it is used.

        Raises TrainingError if it is of another run, MismatchError if a part differs from the run's own in names,
        shapes or types, or if a position is out of bounds.
        """
        check_identity(state, self.settings, self.data)
        random, schedule = state["random"], self.schedule.state_dict()
        if not isinstance(random, list):
            raise MismatchError("its random states are no list")
        for one in random:
            check_random_state(one, self.world.device)
        fitted = {
            "model": fit(without_prefixes(state["model"]), self.network.state_dict(), "model"),
            "optimizer": fit_optimizer(state["optimizer"], self.optimizer),
            "schedule": fit(with_names_of(schedule, state["schedule"]), schedule, "schedule"),
            "position": fit_position(state["position"], asdict(Position())),
            # of other ranks they cannot be assigned: the ranks keep their seeds
            "random": random if len(random) == self.world.size else [],
            "file": state["file"],
        }
        if self.extent and not self.extent.holds(fitted["position"], fitted["schedule"].get("last_epoch")):
            raise MismatchError("its position is not one of this run")
        if not are_finite(fitted["model"].values()):
            raise MismatchError(f"a weight {NOT_FINITE}")
        return fitted


class Directory:
    """A directory of checkpoints with names of ``pattern``, the ``keep`` newest of which stay; for rank 0 alone."""

    pattern = re.compile(r"epoch-(\d{4,})-step-(\d{6,})\.pt")

    def __init__(self, directory: Path, keep: int = 3):
        self.directory, self.keep = directory, keep
        self.is_locked = False
        self.unfit: set[Path] = set()  # damaged, or does not fit; not written again since

    def paths(self) -> list[Path]:
        """Return all checkpoints but the best, oldest first."""
        matches = filter(None, (self.pattern.fullmatch(path.name) for path in self.directory.iterdir()))
        found = sorted((tuple(map(int, match.groups())), match.string) for match in matches)
        return [self.directory / name for _, name in found]

    def prepare(self, *, restart: bool = False) -> None:
        """Make and lock the directory; delete what killed runs left; ``restart`` also deletes the checkpoints.

        Raises TrainingError if nothing can be written, or if another run writes there.
        """
        make_directory(self.directory.parent)
        make_directory(self.directory)
        if not self.is_locked:
            weakref.finalize(self, os.close, lock_directory(self.directory))
            self.is_locked = True
        for path in [*self.directory.parent.iterdir(), *self.directory.iterdir()]:
            match = TEMPORARY.fullmatch(path.name)
            name = match[1] if match else path.name
            is_own = path.parent == self.directory and (name == BEST or self.pattern.fullmatch(name))
            if (is_own and (match or restart)) or (match and name.endswith(OUTPUTS) and path.is_file()):
                delete(path)

    def delete_outdated(self, newest: Path) -> None:
        """Delete, up to ``newest``, the oldest checkpoints, and those that ``load_newest`` passed over."""
        self.unfit.discard(newest)
        paths = self.paths()
        paths = paths[: paths.index(newest) + 1] if newest in paths else []  # another process deleted it
        kept = [path for path in paths if path not in self.unfit][-self.keep :]
        for path in paths:
            if path not in kept:
                delete(path)


class Checkpoints(Directory):
    """Checkpoints of one file each, and best.pt: ``epoch-0003-step-000120.pt`` is after 3 epochs and 120 steps."""

    def save(self, state: Mapping, *, epoch: int, step: int, best: bool = False) -> Path:
        """Write ``state`` and, once it is complete on the disk, delete the oldest checkpoints.

        On a failure all files stay as they were, and TrainingError is raised.
        """
        content = serialise(state)
        path = self.directory / f"epoch-{epoch:04}-step-{step:06}.pt"
        # the best first: a run that is killed between the two repeats the epoch, and writes it again
        for file in (self.directory / BEST, path) if best else (path,):
            write(file, content)
        self.delete_outdated(path)
        return path

    def latest(self, most_bytes: int | None = None, fit: Callable[[dict], dict] = dict) -> dict | None:
        """Return what ``fit`` makes of the newest state that is undamaged and fits, as ``load_newest`` does."""
        return load_newest(self.paths(), lambda path: fit(read(path, most_bytes)), self.unfit)


def load_newest(paths: list[Path], load: Callable[[Path], Any], unfit: set[Path], *, is_first: bool = True) -> Any:
    """Return what ``load`` makes of the newest of ``paths`` that is undamaged and fits; None without any path.

    The others are added to ``unfit``, and the first rank reports them. Raises TrainingError if all checkpoints are
    damaged or do not fit.
    """
    faults = []
    for path in reversed(paths):
        try:
            return load(path)
        except (DamagedError, MismatchError) as error:
            kind = "damaged" if isinstance(error, DamagedError) else "does not fit this run"
            faults.append(f"{path}: {kind} ({error})")
            unfit.add(path)
            if is_first:
                print(f"{faults[-1]}; trying the checkpoint before", flush=True)
    if faults and not is_first:
        raise SystemExit(1)
    if faults:
        fault = next((fault for fault in faults if ": does not fit" in fault), faults[0])
        raise TrainingError(f"{fault}, and no other checkpoint is left. Restore one, {REMEDY}")
    return None


def open_checkpoints(options: argparse.Namespace, is_first: bool = True) -> Checkpoints | None:
    """Return the checkpoints below --modelpath, in a directory that the first rank makes; None without --modelpath."""
    if not options.modelpath:
        return None
    checkpoints = Checkpoints(options.modelpath / "checkpoints", options.keep)
    if is_first:
        checkpoints.prepare(restart=options.restart)
    return checkpoints


def delete(path: Path) -> None:
    """Delete a file, or a directory: at once, as readers see it; the next start deletes what is left of it."""
    if path.is_symlink() or not path.is_dir():
        return path.unlink(missing_ok=True)
    if not TEMPORARY.fullmatch(path.name):
        path = path.rename(path.with_name(f".{path.name}.{secrets.token_hex(4)}"))
    return shutil.rmtree(path, ignore_errors=True)


def make_directory(directory: Path, option: str = "--modelpath") -> None:
    """Make ``directory``, which ``option`` names, with its parents; TrainingError if no file can be written in it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise TrainingError(
            f"{directory}: cannot be written ({error.strerror}). Choose another directory with "
            f"{option}; in a container, one that is bound"
        ) from error


def lock_directory(directory: Path) -> int:
    """Lock ``directory`` and return a descriptor that holds the lock; TrainingError if another run holds it."""
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


def serialise(state: Mapping) -> memoryview:
    """Return the bytes of a file from which ``torch.load`` reads ``state``."""
    content = io.BytesIO()  # torch.save to a full disk hides the reason: "unexpected pos"
    torch.save(dict(state), content)
    return content.getbuffer()


def write(path: Path, content: memoryview) -> None:
    """Write ``content`` to ``path`` completely, or leave the old file and raise TrainingError."""
    try:
        write_file(path, content)
    except OSError as error:
        raise TrainingError(f"{path}: cannot be written ({error.strerror}). {remedy_for(error)}") from error


def read(path: Path, most_bytes: int | None = None) -> dict:
    """Return the state in ``path``, on the CPU, with ``path`` as its "file"; no code in it runs.

    Raises DamagedError, or TrainingError if it has more than ``most_bytes`` or cannot be read.
    """
    try:
        state = unpack(read_file(path, most_bytes))
    except (OSError, MemoryError) as error:
        raise unreadable(path, error) from error
    if not isinstance(state, dict):
        raise DamagedError("not a checkpoint")
    return {**state, "file": str(path)}


def unreadable(path: Path, error: OSError | MemoryError) -> TrainingError:
    """Return why a file cannot be read; it may be undamaged: a disk or a server is out of reach."""
    if isinstance(error, MemoryError):
        return TrainingError(f"{path}: not enough memory to read it. Nothing was changed: request more memory")
    return TrainingError(
        f"{path}: cannot be read ({error.strerror}). Nothing was changed: start again when it can be read"
    )


def unpack(content: bytes) -> object:
    """Return the tensor or the dictionary that torch.save wrote, on the CPU; raises DamagedError, MemoryError."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if any(part.compress_type for part in archive.infolist()):
                raise ValueError("its parts are compressed")
            if damaged := archive.testzip():  # torch.load does not verify the checksums
                raise ValueError(f"wrong checksum of {damaged}")
        # The mark of TorchScript, a program, which torch before 2.6 loads even with weights_only (CVE-2025-32434)
        if b"constants.pkl" in content:
            raise ValueError("it is a program, and nothing in it was executed")
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # for damaged and hostile files zipfile and torch raise a dozen types
        # RuntimeError: c10/core/impl/alloc_cpu.cpp
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            raise MemoryError from error
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "Weights only load failed" in reason:
            reason = "it holds more than tensors, numbers, texts, lists and dicts, and nothing in it was executed"
        raise DamagedError(reason) from error


def save_model(state: Mapping[str, Tensor], path: Path) -> None:
    """Write the weights ``state`` to ``path`` as CPU tensors, completely or not at all."""
    write(path, serialise({name: tensor.cpu() for name, tensor in state.items()}))


def without_prefixes(state):
    """Return ``state`` without the prefixes that DistributedDataParallel and torch.compile add to names."""
    for prefix in ("module.", "_orig_mod.", "module."):  # either may wrap the other
        if isinstance(state, Mapping) and state and all(str(name).startswith(prefix) for name in state):
            state = {name[len(prefix) :]: tensor for name, tensor in state.items()}
    return state


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the random state of a rank that computes on ``device``."""
    random = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        random[device.type] = module_of(device).get_rng_state(device)
    return random


def check_random_state(state: Any, device: torch.device) -> None:
    """Raise MismatchError if a rank that computes on ``device`` cannot set a random state; its own is unchanged."""
    own = random_state(device)
    fit(with_names_of(own, state), own, "random state")
    try:
        set_random_state(state, device)
    except (RuntimeError, KeyError, TypeError) as error:
        raise MismatchError(f"invalid random state: {str(error).splitlines()[0]}") from None
    finally:
        set_random_state(own, device)


def set_random_state(state: Mapping, device: torch.device) -> None:
    """Set the random state of a rank."""
    torch.set_rng_state(state["cpu"])
    if device.type in state and device.type != "cpu":
        module_of(device).set_rng_state(state[device.type], device)


def check_identity(state: Mapping, settings: Mapping, data: str | None) -> None:
    """Raise TrainingError if ``state`` is of another program or another run, with the values that differ."""
    file, missing = state["file"], sorted(PARTS - state.keys())
    if missing:
        raise TrainingError(
            f"{file}: written by another program: it has no {', '.join(missing)}. Choose another "
            "directory with --modelpath"
        )
    saved = state["settings"] if isinstance(state["settings"], Mapping) else {}
    changed = [
        f"{shorten(name)} {shorten(saved.get(name))} (now {settings.get(name)})"
        for name in [*settings, *(name for name in saved if name not in settings)][:100]
        if not is_equal(saved.get(name), settings.get(name))
    ]
    if changed:
        raise TrainingError(f"{file}: written with {', '.join(changed[:9])}. Use the same options, {REMEDY}")
    if data and state.get("data") is None:  # of a version before the fingerprint, or of a script without one
        print(f"{file}: holds no fingerprint of the data. Make sure that the data is the same", flush=True)
    elif data and not is_equal(state["data"], data):
        raise TrainingError(f"{file}: written with other data. Use the same data (--data or MNIST_ROOT), {REMEDY}")


def fit_position(saved, own: Mapping) -> dict:
    """Return a saved position in the form of ``own``, a fresh one: counts are whole numbers from 0."""
    if isinstance(saved, Mapping) and not {*saved} <= {*own}:  # names of earlier versions may be missing
        raise MismatchError("other names of its position")
    position = fit(with_names_of(own, saved), own, "position")
    for name, value in position.items():
        is_count = isinstance(own[name], int)
        if not math.isfinite(value) or (is_count and not (type(value) is int and value >= 0)):
            raise MismatchError("its position is not one of this run")
    return position


def fit_optimizer(saved, optimizer: torch.optim.Optimizer) -> dict:
    """Return a saved state in the form of ``optimizer`` after a step: fused ones write beyond another shape."""
    groups = optimizer.state_dict()["param_groups"]
    own, places = without_own(groups), {place for group in groups for place in group["params"]}
    state, saved_groups = (saved.get("state"), saved.get("param_groups")) if type(saved) is dict else (None, None)
    if not (isinstance(state, dict) and {*state} <= places and type(saved_groups) is list):
        raise MismatchError("its optimizer has other parameters")
    if len(saved_groups) != len(own) or not all(map(has_parameters_of, own, saved_groups)):
        raise MismatchError("its optimizer has other parameters")
    fitted = fit([*map(with_names_of, own, saved_groups)], own, "optimizer")
    fresh = state_after_a_step(optimizer)  # LBFGS and SparseAdam take no step without data: nothing to compare
    fitted_state = {place: fit(one, fresh.get(place, one), "optimizer") for place, one in state.items()}
    return {"state": fitted_state, "param_groups": with_own(fitted, groups)}


def has_parameters_of(own: dict, saved) -> bool:
    return type(saved) is dict and is_equal(saved.get("params"), own["params"])


def without_own(groups: list[dict]) -> list[dict]:
    """Return the groups of an optimizer without the options that depend on the machine."""
    return [{name: value for name, value in group.items() if name not in OWN_OPTIONS} for group in groups]


def with_own(groups: list[dict], own: list[dict]) -> list[dict]:
    """Return the groups of a checkpoint with those options of the run's ``own`` groups."""
    return [{**one, **{name: mine[name] for name in OWN_OPTIONS if name in mine}} for one, mine in zip(groups, own)]


def state_after_a_step(optimizer: torch.optim.Optimizer) -> dict:
    """Return the state of a copy of an optimizer after one step; empty if it takes none without data."""
    trial = copy.deepcopy(optimizer)
    for parameter in (parameter for group in trial.param_groups for parameter in group["params"]):
        parameter.grad = torch.zeros_like(parameter)
    try:
        trial.step()
    except Exception:
        return {}
    return trial.state_dict()["state"]


def with_names_of(own: Mapping, saved) -> Any:
    """Return a saved mapping with the names of ``own``: another version of torch may have more or fewer."""
    if not isinstance(saved, Mapping):
        return saved
    names = {*saved}  # in place of the methods: a hostile mapping has attributes of their names
    return {name: saved[name] if name in names else value for name, value in own.items()}


def fit(saved, own, part: str) -> Any:
    """Return ``saved`` in the form of ``own``, the run's value; only numbers may differ.

    Tensors must have the same type, and the same shape or one element; they are copied to new memory with the strides
    of ``own``. Raises MismatchError, which names ``part``. What this costs is limited by ``own``.
    """
    if isinstance(own, Tensor):
        if isinstance(saved, Tensor) and saved.layout == torch.strided and not saved.is_nested:
            if saved.numel() == own.numel() == 1:
                saved = saved.reshape(own.shape)  # [1] or [], by the version of torch
            if (saved.shape, saved.dtype, saved.device.type) == (own.shape, own.dtype, "cpu"):
                return torch.empty_like(own, device="cpu", requires_grad=False).copy_(saved.detach())
    elif isinstance(own, Mapping):
        if isinstance(saved, Mapping) and {*saved} == {*own}:
            return {name: fit(saved[name], value, part) for name, value in own.items()}
    elif isinstance(own, (list, tuple)):
        if isinstance(saved, (list, tuple)) and len(saved) == len(own):
            return type(own)(fit(one, mine, part) for one, mine in zip(saved, own))
    elif (is_number(own) and is_number(saved)) or (type(saved) is type(own) and saved == own):
        return saved
    raise MismatchError(f"other names, shapes, types or values of its {part}")


def is_number(value: object) -> bool:
    """Return whether ``value`` is an int of 64 bits or a float."""
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def is_equal(saved, own) -> bool:
    """Return whether a value in a file equals the run's own; what this costs is limited by the run's own."""
    if isinstance(own, (list, tuple)):
        return isinstance(saved, (list, tuple)) and len(saved) == len(own) and all(map(is_equal, saved, own))
    if isinstance(own, Mapping):
        same = isinstance(saved, Mapping) and {*saved} == {*own}
        return same and all(is_equal(saved[name], own[name]) for name in own)
    return (saved is None or type(saved) in (bool, int, float, str)) and saved == own


def shorten(value: object) -> str:
    """Return a value of a file in a few characters, for a message: if it is a text or a number, itself."""
    is_short = is_number(value) or type(value) in (str, bool, type(None))
    text = f"{value}" if is_short else f"a {type(value).__name__}"
    return text if len(text) <= 40 and text.isprintable() else f"{text[:40]!r}..."
