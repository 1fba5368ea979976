"""The ranks of one run: who they are, their process group, and what they add up together.

Called by mnist_ddp.py: ``process_group`` around everything, and inside it ``fail_together``
and ``sum_over_ranks``; checkpoints are read and written by rank 0 with ``broadcast`` and ``gather``.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

# Loaded before a process group exists: its functions have group.WORLD as a default argument. Left
# to DistributedDataParallel, which imports it late, they hold the group beyond its end, and one of
# gloo's threads may then abort the process at exit (SIGABRT, rarely).
import torch.distributed.nn.functional

from training import TrainingError

# Where rank 0 tells its launch, and how long another rank waits for it once it is connected.
LAUNCH_KEY = "launch"
LAUNCH_LIMIT = timedelta(seconds=20)


class World(NamedTuple):
    """This rank, the number of ranks, the device that this rank computes on.

    ``host_group`` is the process group for tensors in the hosts' memory, with gloo; None is the
    default group, where that is gloo's.
    """

    rank: int
    size: int
    device: torch.device
    host_group: dist.ProcessGroup | None = None


@contextmanager
def process_group(
    environment: Mapping[str, str], *, use_gpu: bool, timeout: float
) -> Iterator[World]:
    """Join the ranks for the length of a ``with`` block: NCCL between GPUs, gloo between CPUs.

    A rendezvous or a collective that takes longer than ``timeout`` seconds fails. Raises
    TrainingError where the environment makes no sense, no GPU is seen, or the ranks do not find
    each other. A world of one needs no port, so any number of them can run on one host.
    """
    rank, size, local_rank = read_ranks(environment)
    device = select_device(use_gpu, local_rank)
    limit = timedelta(seconds=timeout)
    host_group = None
    leave = dist.destroy_process_group
    try:
        with nullcontext() if use_gpu else senders_keep_their_core():
            dist.init_process_group(
                "nccl" if use_gpu else "gloo",
                rank=rank,
                world_size=size,
                timeout=limit,
                **rendezvous(environment, rank, size, limit),
            )
        if use_gpu:
            host_group = dist.new_group(backend="gloo", timeout=limit)
    except (RuntimeError, ValueError) as error:
        address = f"{environment.get('MASTER_ADDR')}:{environment.get('MASTER_PORT')}"
        if "EADDRINUSE" in str(error):
            raise TrainingError(
                f"another process listens at {address} (MASTER_ADDR:MASTER_PORT); start again, or "
                "export another MASTER_PORT for this launch"
            ) from None
        raise TrainingError(
            f"no rendezvous at {address} (MASTER_ADDR:MASTER_PORT) within {timeout:g} s; see that "
            f"all {size} ranks started and reach it ({str(error).splitlines()[0]})"
        ) from None
    try:
        yield World(rank, size, device, host_group)
    except BaseException as error:
        # The frames that an exception came through keep their variables alive. Among them may be a
        # DistributedDataParallel, and one that outlives the group ends it while it holds Python's
        # lock, for which one of gloo's threads may be waiting: this rank would never end.
        traceback.clear_frames(error.__traceback__)
        if use_gpu and isinstance(error, Exception):
            # This rank failed alone. NCCL's orderly end would wait for the others, who wait for
            # this one, and nobody would read why. Torch has the other end since 2.5.
            leave = getattr(dist.distributed_c10d, "_abort_process_group", leave)
        raise
    finally:
        if dist.is_initialized():  # a check that failed may have left before
            leave()


def rendezvous(environment: Mapping[str, str], rank: int, size: int, limit: timedelta) -> dict:
    """Return where the ranks meet, as arguments of ``init_process_group``.

    Ranks that know their launch compare it with rank 0's before they join, because two launches
    may have chosen the same port. Raises TrainingError where it is another one, RuntimeError where
    rank 0 is not reached within ``limit``.
    """
    if size == 1:
        return {"store": dist.HashStore()}
    launch = read_launch(environment)
    # with a store of its agents, torchrun has started the ranks and hosts it
    if launch is None or environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return {"init_method": "env://"}
    host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    store = dist.TCPStore(
        host, port, size, rank == 0, timeout=limit, wait_for_workers=False, multi_tenant=True
    )
    if rank == 0:
        store.set(LAUNCH_KEY, launch)
    else:
        # rank 0 sets it as soon as it listens
        try:
            store.wait([LAUNCH_KEY], min(limit, LAUNCH_LIMIT))
            found = store.get(LAUNCH_KEY).decode()
        except RuntimeError:  # torch 2.0 has no error of its own for this
            found = "one that is unknown"
        if found != launch:
            raise TrainingError(
                f"{host}:{port} (MASTER_ADDR:MASTER_PORT) is the rendezvous of another launch, "
                f"{found}, and this is {launch}; start again, or export another MASTER_PORT"
            )
    return {"store": dist.PrefixStore(launch, store)}


def read_launch(environment: Mapping[str, str]) -> str | None:
    """Return the name of the launch that started this rank, the same on all of its ranks.

    It is torchrun's run id, else ``PYTORCH_LAUNCH_ID`` of ``conda-python-distributed``; None with
    another launcher. torchrun's count of restarts may differ between nodes.
    """
    return environment.get("TORCHELASTIC_RUN_ID") or environment.get("PYTORCH_LAUNCH_ID") or None


@contextmanager
def senders_keep_their_core() -> Iterator[None]:
    """Start threads that do not take the core from another one by waking up, where Linux allows.

    While one thread of gloo sends, the thread that receives looks again and again whether it may
    have their lock. Where a rank has one core it does so in the sender's place, until the kernel's
    next tick, and every all-reduce waits for that. Threads inherit the policy.
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
    initialization". Raises TrainingError where a variable is missing or makes no sense.
    """
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        return 0, 1, 0
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in names if not environment.get(name)]
    if missing:
        raise TrainingError(
            f"{', '.join(missing)} not set, though RANK or WORLD_SIZE is; start the script with a "
            "launcher that sets all of them, such as torchrun, or unset those two"
        )
    try:
        rank, size, local_rank = (int(environment[name]) for name in names[:3])
    except ValueError as error:
        raise TrainingError(
            f"RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers ({error}); look at what the "
            "launcher set"
        ) from None
    if not 0 <= rank < size or local_rank < 0:
        raise TrainingError(
            f"RANK {rank} of WORLD_SIZE {size} with LOCAL_RANK {local_rank} cannot be: ranks count "
            "from 0; look at what the launcher set"
        )
    return rank, size, local_rank


def select_device(use_gpu: bool, local_rank: int) -> torch.device:
    """Return this rank's device, and make it the current one; TrainingError if no GPU is seen.

    The index is taken modulo the visible devices: a launcher may show a rank all GPUs of its node
    or only its own.
    """
    if not use_gpu:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise TrainingError(
            f"--gpu was given but torch {torch.__version__} sees no GPU; run where one is visible "
            "(in a container: --nv or --rocm), or leave --gpu out"
        )
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


@contextmanager
def fail_together(world: World) -> Iterator[None]:
    """End all ranks if the ``with`` block raises on any, so that none waits for one that is gone.

    The lowest rank that failed raises its error; all others leave with exit status 1 and no word.
    """
    fault = None
    try:
        yield
    except Exception as error:
        fault = error
    # Through the hosts' memory: a GPU that failed adds nothing up any more.
    lowest = torch.tensor(world.rank if fault else world.size)
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN, group=world.host_group)
    if lowest < world.size:
        raise fault if lowest == world.rank else SystemExit(1)


def sum_over_ranks(values: torch.Tensor) -> list[float]:
    """Add up a 1-D tensor over all ranks, in place, and wait for the sums."""
    dist.all_reduce(values)
    return values.tolist()


def broadcast(value, world: World):
    """Return rank 0's ``value``, such as what it read from a file, on every rank."""
    values = [value]
    dist.broadcast_object_list(values, src=0, group=world.host_group)
    return values[0]


def gather(value, world: World) -> list | None:
    """Return the ``value`` of every rank, in their order, on rank 0; None on the others."""
    values = [None] * world.size if world.rank == 0 else None
    dist.gather_object(value, values, group=world.host_group)
    return values
