"""Reports the slowest rank of a training against the median, with its host and GPU; for --health."""

from __future__ import annotations

import math
import platform
import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import torch
from torch import nn

from training.accelerator import module_of
from training.distributed import World, gather
from training.progress import CLEAR_LINE
from training.slow_ranks import default_factor, median_of, name_ranks, slow_ones
from training.time_alone import clock_of

MOST_EARLIER = 100  # reports whose median is what a rank usually takes


class Health:
    """Compares the time that each rank takes alone in a step: to get its batch, and for the forward pass.

    The backward pass is left out: it overlaps with the exchange of gradients, where a rank waits for the slower ones,
    so that all ranks take the same time.

    >>> health = Health(world, report)
    >>> health.watch(model)
    >>> for batch in health.batches("epoch 1/3", batches):
    ...     loss = train(batch)
    >>> values = health.end_epoch("epoch 1/3", loss.item())

    All ranks call the methods, at the same steps. ``report`` prints a line on rank 0. With ``every``, a report also
    follows after so many steps.
    """

    def __init__(self, world: World, report: Callable[[str], None], *, every: int = 0):
        self.world = world
        self.report = report
        self.every = every
        self.clock = clock_of(world.device)
        self.factor = default_factor(world.device.type != "cpu")
        self.place = describe_place(world.device)
        self.earlier: deque[float] = deque(maxlen=MOST_EARLIER)
        self.epoch_start = self.part_start = self.clock.read()

    def watch(self, *modules: nn.Module) -> None:
        """Time the forward passes of ``modules``, inside of which no rank may wait for another.

        Such are a DistributedDataParallel, and the blocks that are passed to ``fully_shard``: its hooks wait for the
        weights before, and reshard them after, these. An evaluation, without gradients, is not timed.
        """

        def start(*_) -> None:
            if torch.is_grad_enabled():
                self.clock.start()

        def stop(*_) -> None:
            if torch.is_grad_enabled():
                self.clock.stop()

        for module in modules:
            module.register_forward_pre_hook(start)
            module.register_forward_hook(stop, prepend=True)

    def batches(self, name: str, batches: Iterable, *, first_step: int = 0) -> Iterator:
        """Yield ``batches``, one for each step, and time how long each takes; ``name`` begins the lines of reports."""
        clock = self.clock
        clock.begin_step()
        clock.start()
        for step, batch in enumerate(batches, start=first_step + 1):
            clock.stop()
            yield batch
            clock.end_step()
            if self.every and step % self.every == 0:
                before, self.part_start = self.part_start, clock.read()
                clear = CLEAR_LINE if sys.stdout.isatty() else ""  # a bar of Progress may be there
                self.compare(f"{clear}{name}  step {step}", before, self.part_start)
            clock.begin_step()
            clock.start()

    def end_epoch(self, name: str, loss: float) -> dict:
        """Report the epoch, and a ``loss`` that is not finite; return the fields for the metrics, on rank 0."""
        before, self.epoch_start = self.epoch_start, self.clock.read()
        self.part_start = self.epoch_start
        values = self.compare(name, before, self.epoch_start)
        if not math.isfinite(loss):
            self.report(f"{name}  loss is {loss}, not a finite number. Lower --lr, or check the data")
        return values

    def compare(self, name: str, before: tuple[int, float], now: tuple[int, float]) -> dict:
        """Report the steps that were timed between two readings of the clock; return the fields, on rank 0."""
        steps = now[0] - before[0]
        own = (now[1] - before[1]) / steps if steps else None
        usual = statistics.median(self.earlier) if self.earlier else None
        if own is not None:
            self.earlier.append(own)
        ranks = gather((own, usual, self.place, describe_state(self.world.device)), self.world)
        if ranks is None:
            return {}
        for line in describe_ranks(*zip(*ranks), self.factor):
            self.report(f"{name}  {line}")
        return fields_of(*list(zip(*ranks))[::2])


def describe_ranks(
    seconds: Sequence[float | None], usual: Sequence[float | None], places: Sequence[str], states: Sequence[str],
    factor: float,
) -> list[str]:  # fmt: skip
    """Return the lines of a report: the slowest rank, those that are slow, and those that became slower.

    Of each rank: the ``seconds`` that it takes alone in a step, those that it ``usual``ly takes, if known, where it is,
    and the state of its GPU. A time of at least ``factor`` times the median, or the usual one, is slow.
    """
    median = median_of(seconds)
    if median is None:
        return ["slowest rank: unknown: too few steps to time one"]
    slowest = slowest_of(seconds)
    ratio = seconds[slowest] / median if median else 1
    state = f"; {states[slowest]}" if states[slowest] else ""
    lines = [
        f"slowest {name_ranks([slowest], places)}: {1e3 * seconds[slowest]:.2f} ms alone per step, "
        f"{ratio:.2f} times the median{state}"
    ]
    slow = slow_ones(seconds, factor)
    if slow and len(slow) < len(seconds):
        times = ", ".join(f"{1e3 * seconds[rank]:.2f}" for rank in slow)
        others = [1e3 * value for rank, value in enumerate(seconds) if value is not None and rank not in slow]
        lines.append(
            f"slow: {name_ranks(slow, places)}: {times} ms alone, others {min(others):.2f} to {max(others):.2f} ms. "
            "Check other processes there, and clocks of CPU and GPU"
        )
    changed = [
        rank for rank, (now, before) in enumerate(zip(seconds, usual)) if now and before and now >= factor * before
    ]
    if changed:
        first = changed[0]
        lines.append(
            f"changed: {name_ranks(changed, places)}: rank {first} {1e3 * seconds[first]:.2f} ms alone, "
            f"{1e3 * usual[first]:.2f} ms before"
        )
    return lines


def fields_of(seconds: Sequence[float | None], places: Sequence[str]) -> dict:
    """Return the fields of a report in the metrics: of the median and of the slowest rank."""
    if median_of(seconds) is None:
        return {}
    slowest = slowest_of(seconds)
    return {
        "step_seconds_alone": median_of(seconds), "slowest_seconds_alone": seconds[slowest],
        "slowest_rank": slowest, "slowest_place": places[slowest],
    }  # fmt: skip


def slowest_of(seconds: Sequence[float | None]) -> int:
    """Return the slowest rank."""
    return max(range(len(seconds)), key=lambda rank: seconds[rank] or 0)


def describe_place(device: torch.device) -> str:
    """Return this host, and the GPU with its PCI address if torch knows it."""
    if device.type == "cpu":
        return platform.node()
    properties = module_of(device).get_device_properties(device)
    address = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    where = " at {:04x}:{:02x}:{:02x}.0".format(*address) if None not in address else ""
    return f"{platform.node()}, GPU {device.index}{where}"


def describe_state(device: torch.device) -> str:
    """Return the peak of a GPU's memory, its clock and its temperature, as far as torch can read them."""
    if device.type == "cpu":
        return ""
    module = module_of(device)
    used, total = module.max_memory_allocated(device), module.get_device_properties(device).total_memory
    facts = [f"{used / 2**30:.1f} of {total / 2**30:.1f} GiB"]
    for read, unit in (("clock_rate", "MHz"), ("temperature", "°C")):
        # they need nvidia-ml-py or amdsmi, whose faults have types of their own
        with suppress(Exception):
            facts.append(f"{getattr(module, read)(device)} {unit}")
    return ", ".join(facts)
