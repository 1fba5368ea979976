# SPDX-License-Identifier: BSD-3-Clause
"""Profiles a few steps of a training on some ranks with torch.profiler: traces, and the operations that take most."""

from __future__ import annotations

import argparse
import atexit
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function, schedule

from training import TrainingError
from training.checkpoint import make_directory
from training.distributed import World, fail_together

WAIT = 4  # steps: libraries load in the first ones, the profiler itself in the next
WARMUP = 1
ACTIVE = 5
STEPS = WAIT + WARMUP + ACTIVE


class Profile:
    """Profiles steps 6 to 10 of this start; without --profile it passes batches through. All ranks call its methods.

    >>> profile = Profile(options, world, report)
    >>> for batch in profile.batches(batches):
    ...     train(batch)
    """

    def __init__(self, options: argparse.Namespace, world: World, report: Callable = print):
        self.world = world
        self.taken = 0  # steps
        self.profiler: Any = None
        if not options.profile:
            return
        with fail_together(world):
            if max(options.profile_ranks) >= world.size:
                raise TrainingError(f"--profile-ranks: there are {world.size} ranks, from 0. Use these numbers")
            if world.rank == 0:
                make_directory(options.profile, "--profile")
        report(f"profile: steps {STEPS - ACTIVE + 1} to {STEPS}, traces in {options.profile}")
        if world.rank in options.profile_ranks:
            activities = [ProfilerActivity.CPU]
            if world.device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            steps = schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1)
            self.profiler = profile(activities=activities, schedule=steps)
            self.trace = options.profile / f"trace-rank-{world.rank}.json"
            atexit.register(self.end)

    def batches(self, batches: Iterable) -> Iterator:
        """Yield ``batches``, one for each step."""
        batches = iter(batches)
        if self.profiler and not self.taken:
            self.profiler.start()
        while self.profiler:
            with record_function("data"):  # the time in which the rank gets its batch
                batch = next(batches, None)
            if batch is None:
                return
            yield batch
            self.profiler.step()
            self.taken += 1
            if self.taken == STEPS:
                self.write()
        yield from batches

    def write(self) -> None:
        """Write the trace of this rank, and print the table of its operations."""
        self.profiler.stop()
        self.profiler.export_chrome_trace(str(self.trace))
        order = f"self_{self.world.device.type}_time_total"  # by themselves
        table = self.profiler.key_averages().table(order, row_limit=10, max_name_column_width=40)
        print(f"profile of rank {self.world.rank}, {ACTIVE} steps:\n{table}", flush=True)
        self.profiler = None  # with its events, a million objects

    def end(self) -> None:
        """Report at the end of the process that it took too few steps."""
        if self.profiler and self.taken:
            self.profiler.stop()
            print(f"no profile of rank {self.world.rank}: {self.taken} steps, {STEPS} are needed", flush=True)
