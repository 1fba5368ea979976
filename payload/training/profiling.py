# SPDX-License-Identifier: BSD-3-Clause
"""Profiles a few steps of a training on some ranks with torch.profiler: traces, and where the time goes."""

from __future__ import annotations

import argparse
import atexit
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from training import TrainingError
from training.checkpoint import make_directory
from training.distributed import World, fail_together, gather

WAIT = 4  # steps: libraries load in the first ones, the profiler itself in the next
WARMUP = 1
ACTIVE = 5
STEPS = WAIT + WARMUP + ACTIVE
SHOWN = 10  # operations in the table
DATA = "data"  # the name of the time in which a rank gets its batch
#: Starts of names of operations between ranks. Kernels of NCCL and RCCL are called ncclDevKernel...
COMMUNICATION = ("gloo:", "nccl", "c10d::", "_c10d_functional::", "record_param_comms")
KINDS = ("computing", "communication", DATA, "idle")


class Profile:
    """Profiles steps 6 to 10 of this start; without --profile it passes batches through. All ranks call its methods.

    >>> profile = Profile(options, world, report)
    >>> for batch in profile.batches(batches):
    ...     train(batch)
    """

    def __init__(self, options: argparse.Namespace, world: World, report: Callable = print):
        self.directory = options.profile
        self.world = world
        self.report = report
        self.taken = 0
        self.result: tuple[list[float], str] | None = None
        self.profiler = None
        if not self.directory:
            return
        with fail_together(world):
            absent = [str(rank) for rank in options.profile_ranks if rank >= world.size]
            if absent:
                raise TrainingError(f"--profile-ranks: no rank {', '.join(absent)} among {world.size}. Use 0 and up")
            if world.rank == 0:
                make_directory(self.directory, "--profile")
        atexit.register(self.end)
        if world.rank in options.profile_ranks:
            activities = [ProfilerActivity.CPU]
            if world.device.type != "cpu":
                activities.append(getattr(ProfilerActivity, world.device.type.upper()))
            steps = schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1)
            self.profiler = profile(activities=activities, schedule=steps)

    def write(self, profiler: profile) -> None:
        """Write the trace of this rank, and keep its shares of time and dearest operations; raises TrainingError."""
        profiler.stop()
        path = self.directory / f"trace-rank-{self.world.rank}.json"
        new = path.with_suffix(".new")
        profiler.export_chrome_trace(str(new))
        try:  # torch reports no error: on a full disk, the file is absent or cut short
            if b'"traceName"' not in new.read_bytes()[-(2**13) :]:  # its last entry
                raise OSError
            new.replace(path)
        except OSError:
            for part in (new, new.with_suffix(".new.tmp")):  # the second is torch's own
                part.unlink(missing_ok=True)
            raise TrainingError(f"{path}: cannot be written. Check its directory, or use another --profile") from None
        on_device = self.world.device.type != "cpu"
        order = f"self_{self.world.device.type}_time_total"  # by themselves
        table = profiler.key_averages().table(order, row_limit=SHOWN, max_name_column_width=40)
        self.result = shares_of(profiler.events(), on_device), table

    def batches(self, batches: Iterable) -> Iterator:
        """Yield ``batches``, one for each step."""
        batches = iter(batches)
        if self.profiler and not self.taken:
            self.profiler.start()
        while self.directory and self.taken < STEPS:
            with record_function(DATA):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch
            self.taken += 1
            if self.profiler:
                self.profiler.step()
            if self.taken == STEPS:
                with fail_together(self.world):
                    if self.profiler:
                        self.write(self.profiler)
                self.profiler = None  # with its events, a million objects
                self.show()
        yield from batches  # as without a profile

    def show(self) -> None:
        """Print where the time of the profiled ranks went."""
        results = [(rank, *found) for rank, found in enumerate(gather(self.result, self.world) or ()) if found]
        for rank, shares, table in results:
            kinds = ", ".join(f"{kind} {share:.1f} %" for kind, share in zip(KINDS, shares))
            self.report(f"profile of rank {rank}, {ACTIVE} steps: {kinds}")
            if rank == results[0][0]:
                self.report(table)
        self.report(f"traces written to {self.directory}")

    def end(self) -> None:
        """Report at the end of the process that it took too few steps."""
        if self.profiler and self.taken:
            self.profiler.stop()
        if self.taken < STEPS:
            self.report(f"no profile: {self.taken} steps, {STEPS} are needed")


def shares_of(events: Iterable, on_device: bool) -> list[float]:
    """Return the shares of time in per cent, in the order of KINDS; their sum is 100.

    A moment counts for the first kind that takes place in it: communication is what no computation hides.
    """
    windows: list[tuple[float, float]] = []
    kinds: tuple[list[tuple[float, float]], ...] = ([], [], [])
    for event in events:
        span = event.time_range.start, event.time_range.end
        is_kernel = event.device_type != torch.autograd.DeviceType.CPU
        if event.name.startswith("ProfilerStep"):
            if not is_kernel:
                windows.append(span)
        elif event.name == DATA:
            kinds[2].append(span)
        elif event.name.startswith(COMMUNICATION):
            kinds[1].append(span)
        elif is_kernel or (not on_device and event.name.startswith(("aten::", "Optimizer.", "autograd::"))):
            kinds[0].append(span)
    start = min(first for first, _ in windows)
    end = max(last for _, last in windows)
    spans: list[tuple[float, float]] = []
    ends = [0.0]
    for kind in kinds:
        spans += [(max(first, start), min(last, end)) for first, last in kind]
        ends.append(100 * covered(spans) / (end - start))
    return [*(after - before for before, after in zip(ends, ends[1:])), 100 - ends[-1]]


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return the length of time that ``spans`` cover; what overlaps counts once."""
    total, reached = 0.0, -math.inf
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, reached))
        reached = max(reached, last)
    return total
