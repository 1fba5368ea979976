# SPDX-License-Identifier: BSD-3-Clause
"""Reports the slowest rank of a training against the median, with its host and GPU; for --health."""

from __future__ import annotations

import platform
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from statistics import fmean

import torch
from torch import nn

from training.distributed import World, gather

# Steps at the start that are not timed: libraries load, and DistributedDataParallel rebuilds its buckets in the
# second one, for which it waits for rank 0.
UNTIMED = 2
MOST_TIMED = 256  # the newest steps of an epoch: the events of a GPU are kept until its end


class Health:
    """Compares the time that each rank takes alone in a step: to get its batch, and for the forward pass.

    The backward pass is left out: it overlaps with the exchange of gradients, where a rank waits for the slower ones,
    so that all ranks take the same time. An evaluation, without gradients, is not timed. All ranks call the methods, at
    the same steps. ``report`` prints a line on rank 0. If not ``enabled``, nothing is timed.

    >>> health = Health(world, report)
    >>> health.watch(model)
    >>> for batch in health.batches(batches):
    ...     train(batch)
    >>> values = health.end_epoch("epoch 1/3")
    """

    def __init__(self, world: World, report: Callable[[str], None], *, enabled: bool = True):
        self.world = world
        self.report = report
        self.enabled = enabled
        self.on_cpu = world.device.type == "cpu"
        self.begun = 0  # steps
        self.times: list | None = None  # of this step, if it is timed: starts and ends in turn
        self.timed: deque[list] = deque(maxlen=MOST_TIMED)  # of the steps of this epoch

    def watch(self, *modules: nn.Module) -> None:
        """Time the forward passes of ``modules``, inside of which no rank may wait for another.

        Such are a DistributedDataParallel, and the blocks that are passed to ``fully_shard``: its hooks wait for the
        weights before, and reshard them after, these.
        """
        if not self.enabled:
            return
        for module in modules:
            module.register_forward_pre_hook(lambda *_: self.record())
            module.register_forward_hook(lambda *_: self.record(), prepend=True)

    def batches(self, batches: Iterable) -> Iterator:
        """Yield ``batches``, one for each step, and time how long each takes."""
        if not self.enabled:
            yield from batches
            return
        self.begin_step()
        for batch in batches:
            self.record()
            yield batch
            if self.times:
                self.timed.append(self.times)
            self.begin_step()

    def begin_step(self) -> None:
        self.begun += 1
        self.times = None
        if self.begun > UNTIMED:
            self.times = []
        self.record()

    def record(self) -> None:
        """Record the start, or the end, of what this rank does alone."""
        if self.times is None or not torch.is_grad_enabled():
            return
        if self.on_cpu:  # by the wall clock, as a CPU that other processes use is slow
            self.times.append(time.perf_counter())
        else:
            self.times.append(torch.cuda.Event(enable_timing=True))
            self.times[-1].record()

    def seconds(self, times: list) -> float:
        """Return the seconds of a timed step; on a GPU, when it has passed the last event."""
        if self.on_cpu:
            return sum(times[1::2]) - sum(times[::2])
        times[-1].synchronize()
        return sum(start.elapsed_time(end) for start, end in zip(times[::2], times[1::2])) / 1000

    def end_epoch(self, name: str) -> dict:
        """Report the slowest rank by the means of all ranks' timed steps; return the fields for metrics, on rank 0."""
        if not self.timed:
            return {}
        own = fmean(map(self.seconds, self.timed))
        self.timed.clear()
        ranks = gather((own, self.world.rank, describe_place(self.world.device)), self.world)
        if ranks is None:
            return {}
        ranks.sort()
        median, _, _ = ranks[(len(ranks) - 1) // 2]
        seconds, rank, place = ranks[-1]
        alone = f"{1e3 * seconds:.2f} ms alone per step, {seconds / median:.2f} times the median"
        self.report(f"{name}  slowest rank {rank} ({place}): {alone}")
        return {
            "step_seconds_alone": median,
            "slowest_seconds_alone": seconds,
            "slowest_rank": rank,
            "slowest_place": place,
        }


def describe_place(device: torch.device) -> str:
    """Return this host, and the GPU with its PCI address if torch knows it."""
    if device.type == "cpu":
        return platform.node()
    place = f"{platform.node()}, GPU {device.index}"
    found = torch.cuda.get_device_properties(device)
    if hasattr(found, "pci_bus_id"):
        place += f" at {found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
    return place
