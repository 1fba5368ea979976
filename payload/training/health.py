# SPDX-License-Identifier: BSD-3-Clause
"""Reports the slowest rank of a training against the median, with its host and GPU; for --health."""

from __future__ import annotations

import platform
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from statistics import fmean

import torch
from torch import nn

from training.accelerator import module_of
from training.distributed import World, gather
from training.progress import CLEAR_LINE

# Steps at the start that are not timed: libraries load, and DistributedDataParallel rebuilds its buckets in the
# second one, for which it waits for rank 0.
UNTIMED = 2
TIMED_ONE_IN = 8  # on a GPU: recording a pair of events takes some microseconds


class Health:
    """Compares the time that each rank takes alone in a step: to get its batch, and for the forward pass.

    The backward pass is left out: it overlaps with the exchange of gradients, where a rank waits for the slower ones,
    so that all ranks take the same time. An evaluation, without gradients, is not timed. All ranks call the methods, at
    the same steps. ``report`` prints a line on rank 0. With ``every``, a report also follows after so many steps; if it
    is None, nothing is timed.

    >>> health = Health(world, report)
    >>> health.watch(model)
    >>> for batch in health.batches("epoch 1/3", batches):
    ...     train(batch)
    >>> values = health.end_epoch("epoch 1/3")
    """

    def __init__(self, world: World, report: Callable[[str], None], *, every: int | None = 0):
        self.world, self.report, self.every = world, report, every
        self.on_cpu = world.device.type == "cpu"
        self.timed_one_in = 1 if self.on_cpu else TIMED_ONE_IN
        self.begun = self.reported = 0  # steps
        self.events: list | None = None  # of this step, if it is timed: starts and ends in turn
        self.pending: deque[list] = deque()  # of the steps that the device has not passed yet
        self.seconds: list[float] = []  # of the steps of this epoch that it has passed

    def watch(self, *modules: nn.Module) -> None:
        """Time the forward passes of ``modules``, inside of which no rank may wait for another.

        Such are a DistributedDataParallel, and the blocks that are passed to ``fully_shard``: its hooks wait for the
        weights before, and reshard them after, these.
        """
        for module in modules if self.every is not None else ():
            module.register_forward_pre_hook(lambda *_: self.record())
            module.register_forward_hook(lambda *_: self.record(), prepend=True)

    def batches(self, name: str, batches: Iterable, *, first_step: int = 0) -> Iterator:
        """Yield ``batches``, one for each step, and time how long each takes; ``name`` begins the lines of reports."""
        if self.every is None:
            yield from batches
            return
        self.begin_step()
        for step, batch in enumerate(batches, start=first_step + 1):
            self.record()
            yield batch
            if self.events:
                self.pending.append(self.events)
            self.read()
            if self.every and step % self.every == 0:
                clear = CLEAR_LINE if sys.stdout.isatty() else ""  # a bar of Progress may be there
                self.compare(f"{clear}{name}  step {step}", self.seconds[self.reported :])
                self.reported = len(self.seconds)
            self.begin_step()

    def begin_step(self) -> None:
        self.begun += 1
        self.events = [] if self.begun > UNTIMED and self.begun % self.timed_one_in == 0 else None
        self.record()

    def record(self) -> None:
        """Record the start, or the end, of what this rank does alone."""
        if self.events is None or not torch.is_grad_enabled():
            return
        if self.on_cpu:  # by the wall clock, as a CPU that other processes use is slow
            self.events.append(time.perf_counter())
        else:
            self.events.append(module_of(self.world.device).Event(enable_timing=True))
            self.events[-1].record()

    def read(self) -> None:
        """Read the times of the steps that the device has passed; never wait for it."""
        while self.pending and (self.on_cpu or self.pending[0][-1].query()):
            events = self.pending.popleft()
            pairs = zip(events[::2], events[1::2])
            self.seconds.append(
                sum(end - start if self.on_cpu else start.elapsed_time(end) / 1000 for start, end in pairs)
            )

    def end_epoch(self, name: str) -> dict:
        """Report the epoch; return the fields for the metrics, on rank 0."""
        if self.every is None:
            return {}
        self.read()
        values = self.compare(name, self.seconds)
        self.seconds, self.reported = [], 0
        return values

    def compare(self, name: str, own: list[float]) -> dict:
        """Report the slowest rank by the means of all ranks' ``own`` seconds; return the fields, on rank 0."""
        ranks = gather((fmean(own) if own else None, describe_place(self.world.device)), self.world) or []
        timed = sorted((seconds, rank) for rank, (seconds, _) in enumerate(ranks) if seconds is not None)
        if not timed:
            if ranks:
                self.report(f"{name}  slowest rank: unknown: too few steps to time one")
            return {}
        median, (slowest, rank) = timed[(len(timed) - 1) // 2][0], timed[-1]
        place, ratio = ranks[rank][1], slowest / median if median else 1
        alone = f"{1e3 * slowest:.2f} ms alone per step, {ratio:.2f} times the median"
        self.report(f"{name}  slowest rank {rank} ({place}): {alone}")
        return {
            "step_seconds_alone": median,
            "slowest_seconds_alone": slowest,
            "slowest_rank": rank,
            "slowest_place": place,
        }


def describe_place(device: torch.device) -> str:
    """Return this host, and the GPU with its PCI address if torch knows it."""
    if device.type == "cpu":
        return platform.node()
    properties = module_of(device).get_device_properties(device)
    names = [name for name in ("pci_domain_id", "pci_bus_id", "pci_device_id") if hasattr(properties, name)]
    address = [getattr(properties, name) for name in names]
    where = " at {:04x}:{:02x}:{:02x}.0".format(*address) if len(address) == 3 else ""
    return f"{platform.node()}, GPU {device.index}{where}"
