# SPDX-License-Identifier: BSD-3-Clause
"""The ranks of a run: their numbers and devices, their process group, and the collectives of a training.

``process_group`` encloses a run; ``fail_together``, ``sum_over_ranks``, ``broadcast`` and ``gather``
are called inside it, by all ranks.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

# Imported before a process group exists: its functions have group.WORLD as a default argument. If
# DistributedDataParallel imports it later, they keep the group alive beyond its end, and a thread of
# gloo may abort the process at exit (SIGABRT, rarely).
import torch.distributed.nn.functional

from training import TrainingError

# How often, every 10 ms, the end of a process group looks whether the threads of gloo are idle.
IDLE_CHECKS = 200


class World(NamedTuple):
    """This rank, the number of ranks, and the device of this rank.

    ``host_group`` is the gloo process group for tensors in host memory; None is the default group, if
    that one uses gloo.
    """

    rank: int
    size: int
    device: torch.device
    host_group: dist.ProcessGroup | None = None


@contextmanager
def process_group(environment: Mapping[str, str], *, use_gpu: bool, timeout: float) -> Iterator[World]:
    """Join the ranks for the duration of a ``with`` block: NCCL between GPUs, gloo between CPUs.

    A rendezvous or a collective that takes longer than ``timeout`` seconds fails. Raises TrainingError
    if the environment is invalid, no GPU is visible, the rendezvous fails, or the ranks run different programs.
    A world of one rank needs no port, so any number of them can run on one host.
    """
    rank, size, local_rank = read_ranks(environment)
    device = select_device(use_gpu, local_rank)
    limit = timedelta(seconds=timeout)
    host_group = None
    try:
        if use_gpu:
            init_process_group("nccl", rank, size, limit)
            host_group = dist.new_group(backend="gloo", timeout=limit)
        else:
            with batch_scheduling():
                init_process_group("gloo", rank, size, limit)
    except (RuntimeError, ValueError) as error:
        address = f"{environment.get('MASTER_ADDR')}:{environment.get('MASTER_PORT')} (MASTER_ADDR:MASTER_PORT)"
        reason = str(error).splitlines()[0].rstrip(".")
        raise TrainingError(
            f"no rendezvous at {address} within {timeout:g} s: {reason}. Check that all {size} ranks started and can "
            "reach it; if another process uses the port, export another MASTER_PORT"
        ) from None
    with leave_afterwards(use_gpu):
        world = World(rank, size, device, host_group)
        if size > 1:
            check_programs(world)
        yield world


def init_process_group(backend: str, rank: int, size: int, limit: timedelta) -> None:
    """Create the default group; a world of one rank has a store in its own memory."""
    store = dist.HashStore() if size == 1 else None  # None: torch's variables
    dist.init_process_group(backend, rank=rank, world_size=size, timeout=limit, store=store)


def check_programs(world: World) -> None:
    """End all ranks if one runs another program, or other options, than rank 0: two launches met at one port.

    In a job step whose tasks start two programs each, rank 0 of one can meet rank 1 of the other.
    """
    # torch.distributed.launch gives each rank such an option
    own = shlex.join(word for word in sys.argv if not word.startswith(("--local-rank", "--local_rank")))
    first = broadcast(own, world)
    with fail_together(world):
        if own != first:
            raise TrainingError(
                f"the ranks run different programs: rank 0 {first}, rank {world.rank} {own}. Launch each program on "
                "its own, or export another MASTER_PORT for one; pass what differs between the ranks of one program "
                "as variables"
            )


@contextmanager
def leave_afterwards(uses_nccl: bool) -> Iterator[None]:
    """Destroy the process group after the ``with`` block, whatever ends it."""
    leave = dist.destroy_process_group
    try:
        yield
    except BaseException as error:
        # The frames of an exception keep their variables alive, among them a DistributedDataParallel.
        # If that outlives the group, it ends the group while it holds Python's global lock, for which a
        # thread of gloo may be waiting: this rank would hang.
        traceback.clear_frames(error.__traceback__)
        if uses_nccl and isinstance(error, Exception):
            # Only this rank failed. To destroy NCCL's group it would wait for the others, which wait for
            # this rank, and the error would not be printed. Since torch 2.5 the group can be aborted.
            leave = getattr(dist.distributed_c10d, "_abort_process_group", leave)
        raise
    finally:
        if dist.is_initialized():  # a failed check may have destroyed it
            leave()
        wait_for_threads()


def wait_for_threads() -> None:
    """Wait, for 2 seconds at most, until the threads of gloo are idle, and let them have Python's global lock.

    A collective has ended before the thread that ran it drops its tensors, for which it needs the lock. If the
    interpreter ends first, it makes the thread exit within a destructor, and the process aborts after its
    work is done: "terminate called without an active exception". ``destroy_process_group`` joins the threads
    if nothing else refers to the group, but the caches of DTensor do, and so FSDP2 (seen with torch 2.13).
    """
    for _ in range(IDLE_CHECKS):
        time.sleep(0.01)
        if not gloo_is_busy():
            return


def gloo_is_busy() -> bool:
    """Return whether a thread of gloo does something other than wait."""
    for path in Path("/proc/self/task").glob("*/stat"):
        try:
            stat = path.read_text()
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended
            continue
        # proc(5), "/proc/pid/stat": the state, S for one that waits, is the first field after the name in parentheses
        name, _, fields = stat.rpartition(")")
        if name.endswith("(pt_gloo_runloop") and fields.split()[0] != "S":
            return True
    return False


@contextmanager
def batch_scheduling() -> Iterator[None]:
    """Give threads that start in the ``with`` block the policy SCHED_BATCH, if Linux allows it.

    While one thread of gloo sends, the receiving thread polls for their common lock. On a rank with one
    core it preempts the sender when it wakes up, until the kernel's next tick, which delays every
    all-reduce. With SCHED_BATCH a thread that wakes up does not preempt another. Threads inherit the policy.
    """
    changed = False
    if hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(PermissionError):  # a container may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            changed = True
    try:
        yield
    finally:
        if changed:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def read_ranks(environment: Mapping[str, str]) -> tuple[int, int, int]:
    """Return rank, world size and local rank; (0, 1, 0) with neither RANK nor WORLD_SIZE set.

    Source: https://docs.pytorch.org/docs/stable/distributed.html, "Environment variable
    initialization". Raises TrainingError if a variable is missing or invalid.
    """
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        return 0, 1, 0
    given = {name: environment.get(name, "not set") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    if all(value.isdecimal() for value in given.values()):
        rank, size, local_rank = map(int, given.values())
        if rank < size:
            return rank, size, local_rank
    variables = ", ".join(f"{name}={value}" for name, value in given.items())
    raise TrainingError(
        f"invalid variables of a rank: {variables}. Start the script with a launcher that sets all of them, such as "
        "torchrun, or unset RANK and WORLD_SIZE"
    )


def select_device(use_gpu: bool, local_rank: int) -> torch.device:
    """Return this rank's device and make it the current one; TrainingError if no GPU is visible.

    The index is taken modulo the number of visible devices: a launcher may make all GPUs of the node
    visible to a rank, or only its own.
    """
    if not use_gpu:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise TrainingError(
            f"--gpu: torch {torch.__version__} sees no GPU. Run where one is visible "
            "(in a container: --nv or --rocm), or omit --gpu"
        )
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


@contextmanager
def fail_together(world: World) -> Iterator[None]:
    """End all ranks if the ``with`` block raises on any of them, so that none waits for one that has ended.

    The lowest rank that failed raises its error; all others exit with status 1, without a message.
    """
    if not dist.is_initialized():  # one process without a process group
        yield
        return
    fault = None
    first_fault = world.size
    try:
        yield
    except Exception as error:
        fault = error
        first_fault = world.rank
    # In host memory: a GPU that failed can no longer take part.
    lowest = torch.tensor(first_fault)
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN, group=world.host_group)
    if fault and lowest == world.rank:
        raise fault
    if lowest < world.size:
        raise SystemExit(1)


def sum_over_ranks(values: torch.Tensor) -> list[float]:
    """Add up a 1-D tensor over all ranks, in place, and wait for the sums."""
    dist.all_reduce(values)
    return values.tolist()


def broadcast(value, world: World):
    """Return rank 0's ``value``, such as what it read from a file, on every rank."""
    if not dist.is_initialized():
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0, group=world.host_group)
    return values[0]


def gather(value, world: World) -> list | None:
    """Return the ``value`` of every rank, in their order, on rank 0; None on the others."""
    if not dist.is_initialized():
        return [value]
    values = None
    if world.rank == 0:
        values = [None] * world.size
    dist.gather_object(value, values, group=world.host_group)
    return values
