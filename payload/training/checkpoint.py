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
import shutil
import tempfile
import weakref
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from training import NOT_FINITE, TrainingError
from training.accelerator import module_of
from training.distributed import World, broadcast, fail_together, gather
from training.files import INCOMPLETE, read_file, reading, temporary_name, write_file, writing
from training.finite import are_finite, check_weights

BEST = "best.pt"
PARTS = {"model", "optimizer", "schedule", "position", "random", "settings"}
REMEDY = "choose another directory with --modelpath, or start from scratch with --restart"
MOST_BYTES = 8, 2**26  # for each byte of the weights, and for the random states of all ranks
OWN_OPTIONS = ("fused", "foreach")  # of an optimizer: they depend on the machine and on torch


class UnusableError(Exception):
    """A checkpoint is damaged or does not fit this run; the text tells why."""


def damaged(reason: str) -> UnusableError:
    return UnusableError(f"damaged ({reason})")


def misfit(reason: str) -> UnusableError:
    return UnusableError(f"does not fit this run ({reason})")


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
    """A network with what trains it, and its position, a dataclass of numbers. All ranks must call its methods.

    ``settings`` are the options that identify this run, by the names that messages show; ``limits`` are the greatest
    values of its position; ``data`` is a fingerprint of the samples, on rank 0.
    """

    network: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    settings: Mapping
    world: World
    limits: Mapping = field(default_factory=dict)
    data: str | None = None
    position: Any = field(default_factory=Position)

    def save(self, checkpoints: Checkpoints | None) -> str | None:
        """Write a checkpoint and return its path; without any, do nothing. All ranks end if a weight is not finite."""
        return checkpoints.save(self) if checkpoints else None

    def resume(self, checkpoints: Checkpoints | None) -> str | None:
        """Continue from the newest checkpoint that is undamaged and fits; return its path, None if there is none.

        The number of ranks may differ from that of the checkpoint. If the checkpoint is of another run, one
        rank raises TrainingError and the others exit.
        """
        return checkpoints.newest(lambda path: checkpoints.load(self, path)) if checkpoints else None


class Checkpoints:
    """A directory of checkpoints, the ``keep`` newest of which stay. All ranks call its methods.

    Each is one file that rank 0 writes and reads: ``epoch-0003-step-000120.pt`` is after 3 epochs and 120 steps, and
    best.pt after the best epoch.
    """

    pattern = re.compile(r"epoch-\d{4,}-step-\d{6,}\.pt")

    def __init__(self, directory: Path, world: World, *, keep: int = 3):
        self.directory, self.world, self.keep = directory, world, keep
        self.is_locked = False
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
                checkpoints = [*self.paths(), self.directory / BEST] if restart else []
                older = re.compile(rf"\.({self.pattern.pattern}|{BEST})\.[0-9a-f]{{8}}")  # of earlier versions
                left = [path for path in self.directory.iterdir() if older.fullmatch(path.name)]
                left += [*self.directory.glob(INCOMPLETE), *self.directory.parent.glob(INCOMPLETE)]
                for path in [*checkpoints, *left]:
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

    def save(self, run: Run) -> str:
        """Write a checkpoint, also as best.pt after the best epoch; return its path.

        If a weight is not a finite number, all ranks end, and the checkpoints stay as they are.
        """
        check_weights(run.network.state_dict().values(), self.world)
        random, here = gather(random_state(self.world.device), self.world), run.position
        path = self.directory / f"epoch-{here.epoch:04}-step-{here.step:06}.pt"
        with fail_together(self.world):
            if self.world.rank == 0:
                state = {
                    "model": run.network.state_dict(),
                    "optimizer": run.optimizer.state_dict(),
                    "schedule": run.schedule.state_dict(),
                    "settings": dict(run.settings),
                    "data": run.data,
                    "position": asdict(here),
                    "random": random,
                }
                self.write(path, state, is_best=here.step == 0 and here.epoch == here.best_epoch)
        return str(path)

    def write(self, path: Path, state: Mapping, *, is_best: bool = False) -> None:
        """Write ``state`` and, once it is complete on the disk, delete the oldest checkpoints.

        On a failure all files stay as they were, and TrainingError is raised.
        """
        content = serialise(state)
        # the best first: a run that is killed between the two repeats the epoch, and writes it again
        for file in (self.directory / BEST, path) if is_best else (path,):
            with writing(file):
                write_file(file, content)
        self.delete_outdated(path)

    def delete_outdated(self, newest: Path) -> None:
        """Delete, up to ``newest``, the oldest checkpoints, and those that could not be used."""
        self.unusable.discard(newest)
        paths = self.paths()
        paths = paths[: paths.index(newest) + 1] if newest in paths else []  # another process deleted it
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
        """Continue a run from a checkpoint, and return its path; UnusableError, on all ranks, if that is impossible."""
        size = sum(tensor.numel() * tensor.element_size() for tensor in run.network.state_dict().values())
        most_bytes = MOST_BYTES[0] * size + MOST_BYTES[1]

        def read_and_fit() -> dict | None:  # on rank 0: the ranks may see different files at the same moment
            return None if self.world.rank else fit_state(path, read(path, most_bytes), run)

        state = broadcast(self.agree(read_and_fit), self.world)
        with fail_together(self.world):
            run.network.load_state_dict(state["model"])
            run.optimizer.load_state_dict(state["optimizer"])
            run.schedule.load_state_dict(state["schedule"])
            run.position = replace(run.position, **state["position"])
            if len(state["random"]) == self.world.size:  # those of other ranks cannot be assigned: the seeds stay
                set_random_state(state["random"][self.world.rank], self.world.device)
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


def serialise(state: Mapping) -> memoryview:
    """Return the bytes of a file from which ``torch.load`` reads ``state``."""
    content = io.BytesIO()  # torch.save to a full disk hides the reason: "unexpected pos"
    torch.save(dict(state), content)
    return content.getbuffer()


def save_model(state: Mapping[str, Tensor], path: Path) -> None:
    """Write the weights ``state`` to ``path`` as CPU tensors, completely or not at all."""
    with writing(path):
        write_file(path, serialise({name: tensor.cpu() for name, tensor in state.items()}))


def read(path: Path, most_bytes: float = math.inf) -> dict:
    """Return the state in ``path``, on the CPU; no code in it runs.

    Raises UnusableError, or TrainingError if it has more than ``most_bytes`` or cannot be read.
    """
    with reading(path):
        state = unpack(read_file(path, most_bytes))
    if not isinstance(state, dict):
        raise damaged("not a checkpoint")
    return state


def unpack(content: bytes, place: str = "") -> object:
    """Return the tensor or the dictionary that torch.save wrote, on the CPU; raises UnusableError, MemoryError."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if any(part.compress_type for part in archive.infolist()):
                raise ValueError("its parts are compressed")
            if part := archive.testzip():  # torch.load does not verify the checksums
                raise ValueError(f"wrong checksum of {part}")
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
        raise damaged(place + reason) from error


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
    """Raise UnusableError if a rank that computes on ``device`` cannot set a random state; its own is unchanged."""
    own = random_state(device)
    fit(with_names_of(own, state), own, "random state")
    try:
        set_random_state(state, device)
    except (RuntimeError, KeyError, TypeError) as error:
        raise misfit(f"invalid random state: {str(error).splitlines()[0]}") from None
    finally:
        set_random_state(own, device)


def set_random_state(state: Mapping, device: torch.device) -> None:
    """Set the random state of a rank."""
    torch.set_rng_state(state["cpu"])
    if device.type in state and device.type != "cpu":
        module_of(device).set_rng_state(state[device.type], device)


def fit_state(path: Path, state: Mapping, run: Run) -> dict:
    """Return the parts of a ``state`` that a run can load, before any of it is used.

    Raises TrainingError if it is of another run, UnusableError if a part differs from the run's own in names, shapes
    or types, or if a number is out of bounds.
    """
    fitted = fit_values(path, state, run)
    if not isinstance(state["random"], list):
        raise misfit("its random states are no list")
    for one in state["random"]:
        check_random_state(one, run.world.device)
    model = fit(without_prefixes(state["model"]), run.network.state_dict(), "model")
    if not are_finite(model.values()):
        raise misfit(f"a weight {NOT_FINITE}")
    optimizer = fit_optimizer(state["optimizer"], run.optimizer)
    return {**fitted, "model": model, "optimizer": optimizer, "random": state["random"]}


def fit_values(path: Path, state: Mapping, run: Run) -> dict:
    """Return position and schedule of a ``state`` that is of this run; else, TrainingError or UnusableError."""
    missing = sorted(PARTS - state.keys())
    if missing:
        raise TrainingError(
            f"{path}: written by another program: it has no {', '.join(missing)}. Choose another "
            "directory with --modelpath"
        )
    saved = state["settings"] if isinstance(state["settings"], Mapping) else {}
    changed = [
        f"{shorten(name)} {shorten(saved.get(name))} (now {run.settings.get(name)})"
        for name in [*run.settings, *(name for name in saved if name not in run.settings)][:100]
        if not is_equal(saved.get(name), run.settings.get(name))
    ]
    if changed:
        raise TrainingError(f"{path}: written with {', '.join(changed[:9])}. Use the same options, {REMEDY}")
    saved_data = state.get("data")  # None: of a script without a fingerprint
    if saved_data is not None and run.data is not None and not is_equal(saved_data, run.data):
        raise TrainingError(f"{path}: written with other data. Use the same data (--data or MNIST_ROOT), {REMEDY}")
    position, schedule = asdict(run.position), run.schedule.state_dict()
    fitted = {
        "position": fit(with_names_of(position, state["position"]), position, "position"),
        "schedule": fit(with_names_of(schedule, state["schedule"]), schedule, "schedule"),
    }
    for name, value in fitted["position"].items():
        is_wrong_count = type(position[name]) is int and not (type(value) is int and value >= 0)
        if is_wrong_count or not math.isfinite(value) or value > run.limits.get(name, value):
            raise misfit("its position is not one of this run")
    return fitted


def fit_optimizer(saved, optimizer: torch.optim.Optimizer) -> dict:
    """Return a saved state in the form of ``optimizer`` after a step: fused ones write beyond another shape."""
    own = optimizer.state_dict()["param_groups"]
    state, groups = (saved.get("state"), saved.get("param_groups")) if type(saved) is dict else (None, None)
    if not (isinstance(state, dict) and {*state} <= {place for group in own for place in group["params"]}):
        raise misfit("its optimizer has other parameters")
    fitted = [{**group, "params": mine["params"]} for group, mine in zip(fit_groups(groups, own), own)]
    fresh = state_after_a_step(optimizer)  # LBFGS and SparseAdam take no step without data: nothing to compare
    return {
        "state": {place: fit(one, fresh.get(place, one), "optimizer") for place, one in state.items()},
        "param_groups": fitted,
    }


def fit_groups(saved, own: list[dict]) -> list[dict]:
    """Return the groups of a saved optimizer in the form of ``own``."""
    if type(saved) is not list or len(saved) != len(own):
        raise misfit("its optimizer has other groups of parameters")
    return fit([with_names_of(mine, one, OWN_OPTIONS) for mine, one in zip(own, saved)], own, "optimizer")


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


def with_names_of(own: Mapping, saved, but: tuple = ()) -> Any:
    """Return a saved mapping with the names of ``own``, and its values for absent names and for those in ``but``.

    Another version of torch may have more or fewer names.
    """
    if not isinstance(saved, Mapping):
        return saved
    names = {*saved} - {*but}  # in place of the methods: a hostile mapping has attributes of their names
    return {name: saved[name] if name in names else value for name, value in own.items()}


def fit(saved, own, part: str) -> Any:
    """Return ``saved`` in the form of ``own``, the run's value; only numbers may differ.

    Tensors must have the same type, and the same shape or one element; they are copied to new memory with the strides
    of ``own``. Raises UnusableError, which names ``part``. What this costs is limited by ``own``.
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
    raise misfit(f"other names, shapes, types or values of its {part}")


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
