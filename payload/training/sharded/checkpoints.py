# SPDX-License-Identifier: BSD-3-Clause
"""Saves a run on all ranks while it trains on, and continues it with any number of ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from training import NOT_FINITE, TrainingError
from training.checkpoint import DamagedError, MismatchError, check_identity, describe, fit, no_checkpoint_left
from training.distributed import World, broadcast, fail_together, gather
from training.files import remedy_for
from training.finite import are_finite, check_weights
from training.options import Interval
from training.sharded.directory import ShardedDirectory, delete, name_of, step_of
from training.sharded.state import Staging, apply, flat, state_of
from training.sharded.storage import Manifest, ShardReader, ShardWriter, read_manifest

HALF_HOUR = Interval(seconds=1800)
OLDEST_TORCH = (2, 6)  # fully_shard is public since then
QUESTION_STEPS = 16  # between the questions of the ranks whether a checkpoint is complete
REPORTED_SECONDS = 1  # a longer wait for the checkpoint before is reported


@dataclass
class Timer:
    """Decides after which steps a checkpoint is due: the same on all ranks, which all ask after every step.

    The clocks of the ranks differ, so rank 0 decides about time. It estimates from its pace how many steps
    are left, and the ranks agree to ask it again after half of them: in an interval of n steps it is asked
    about log2(n) times. ``ask`` returns rank 0's value of a function on all ranks.
    """

    every: Interval
    ask: Callable[[Callable[[], int]], int]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self):
        self.start(0)

    def start(self, step: int) -> None:
        """Begin a new interval after ``step`` steps."""
        self.began, self.first = self.clock(), step
        self.next_question = step + 1

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due after ``step`` steps."""
        if self.every.steps:
            return step % self.every.steps == 0
        if step < self.next_question:
            return False
        steps = self.ask(lambda: self.steps_left(step))
        self.next_question = step + max(1, steps // 2)
        return steps == 0

    def steps_left(self, step: int) -> int:
        """Return how many steps are left, by this rank's clock and pace; 0 if the interval is over."""
        passed = self.clock() - self.began
        left = self.every.seconds - passed
        pace = passed / max(1, step - self.first)
        return 0 if left <= 0 else max(1, int(min(left / max(pace, 1e-9), 2**40)))


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
            while self.directory.damaged:  # one of them may have the name of the new checkpoint
                self.directory.put_aside(self.directory.damaged.pop())
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
                raise_fault(error, path, self.world)
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
        paths, faults = None, []
        with fail_together(self.world):
            if self.world.rank == 0:
                paths = self.directory.paths()
        for path in reversed(broadcast(paths, self.world)):
            fault = self.load(run, path)
            if not fault:
                self.timer.start(run.position.step)
                self.step = run.position.step
                return str(path)
            faults.append(f"{path}: {fault}")
            if self.world.rank == 0:
                print(f"{faults[-1]}; trying the checkpoint before", flush=True)
                self.directory.damaged.append(path)
        with fail_together(self.world):
            if faults:
                raise no_checkpoint_left(faults)
        return None

    def agree(self, decide: Callable[[], object]) -> tuple[object, str]:
        """Return what ``decide`` returns on this rank, and why the checkpoint cannot be used: the same on all ranks."""
        result, fault = None, ""
        with fail_together(self.world):
            try:
                result = decide()
            except MismatchError as error:
                fault = f"does not fit this run ({error})"
            except DamagedError as error:
                fault = f"damaged ({error})"
        faults = broadcast(gather(fault, self.world), self.world)
        return result, next(filter(None, faults), "")

    def load(self, run, path: Path) -> str:
        """Continue a run from a checkpoint; return why it cannot, empty if it does."""
        manifest, fault = self.agree(lambda: read_manifest(path) if self.world.rank == 0 else None)
        manifest = broadcast(manifest, self.world)
        tensors, values = state_of(run)
        own = dict(flat(tensors))
        if not fault:
            fitted, fault = self.agree(lambda: fit_manifest(manifest, path, own, values))
        if fault:
            return fault
        with fail_together(self.world):
            if hasattr(run, "check_position"):
                run.check_position(fitted["position"])
        # With another number of ranks the random states cannot be assigned, and ranks keep their seeds.
        if manifest.size != self.world.size or any(name not in manifest.tensors for name in own):
            del tensors["random"]

        def read() -> None:
            dtypes = {name: tensor.dtype for name, tensor in flat(tensors)}
            try:
                dcp.load(tensors, storage_reader=ShardReader(path, manifest, dtypes), process_group=self.group)
            except dcp.CheckpointException as error:
                lowest = min(error.failures)
                fault = error.failures[lowest][0]
                if isinstance(fault, DamagedError) or self.world.rank == lowest:
                    raise fault from None
                return
            if not are_finite(tensors["model"].values()):
                raise MismatchError(f"a weight {NOT_FINITE}")

        _, fault = self.agree(read)
        with fail_together(self.world):
            if not fault:
                apply(run, tensors, fitted, str(path))
        return fault


def fit_manifest(manifest: Manifest, path: Path, own: Mapping[str, torch.Tensor], values: Mapping) -> dict:
    """Return the values of a checkpoint that a run can load; ``own`` and ``values`` are the run's own.

    Raises TrainingError if the checkpoint is of another run, MismatchError if a part differs from the run's own
    in names, shapes or types.
    """
    saved, step = manifest.values, step_of(path)
    # "model" and "random" are tensors
    check_identity({"model": None, "random": None, **saved, "file": path}, values["settings"], values["data"])
    fit(
        *({name: None for name in names if not name.startswith("random.")} for names in (manifest.tensors, own)),
        "state",
    )
    for name, tensor in own.items():
        stored = manifest.tensors.get(name)
        if stored and (f"torch.{stored.dtype}", stored.shape) != (str(tensor.dtype), tuple(tensor.shape)):
            found = f"a tensor of torch.{describe(stored.dtype)} with the shape {list(stored.shape)}"
            raise MismatchError(f"{name} is {found}, expected {describe(tensor)}")
    position = fit(saved["position"], values["position"], "position", all_names=False)
    for name, value in position.items():
        whole = isinstance(values["position"][name], int)
        if not math.isfinite(value) or (whole and type(value) is not int) or value < 0:
            raise MismatchError(f"position[{name}] is {describe(value)}, expected 0 or more")
    if position["step"] != step:
        raise MismatchError(f"position[step] is {position['step']}, expected {step}")
    return {
        "position": position,
        "schedule": fit(saved["schedule"], values["schedule"], "schedule", all_names=False),
        "optimizer": fit(saved["optimizer"], values["optimizer"], "optimizer"),
    }


def raise_fault(error: dcp.CheckpointException, path: Path, world: World) -> None:
    """Raise, on the lowest rank that failed, why the checkpoint was not written; the others exit with status 1."""
    lowest = min(error.failures)
    fault = error.failures[lowest][0]
    if world.rank != lowest:
        raise SystemExit(1)
    if isinstance(fault, OSError):
        raise TrainingError(f"{path}: cannot be written ({fault.strerror}). {remedy_for(fault)}") from fault
    raise fault


def check_torch() -> None:
    """Raise TrainingError if this torch is too old."""
    if tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < OLDEST_TORCH:
        raise TrainingError(
            f"sharded checkpoints need torch {'.'.join(map(str, OLDEST_TORCH))} or newer, found {torch.__version__}. "
            "Load a newer PyTorch module"
        )
