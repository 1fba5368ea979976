# SPDX-License-Identifier: BSD-3-Clause
"""Profiles a few steps of a training on some ranks with torch.profiler: traces, and the operations that take most."""

from __future__ import annotations

import argparse
import atexit
from collections.abc import Callable, Iterable, Iterator

from torch.profiler import ProfilerActivity, profile, record_function, schedule

from training import TrainingError
from training.checkpoint import make_directory
from training.distributed import World, fail_together, gather

WAIT = 4  # steps: libraries load in the first ones, the profiler itself in the next
WARMUP = 1
ACTIVE = 5
STEPS = WAIT + WARMUP + ACTIVE
SHOWN = 10  # operations in a table
DATA = "data"  # the name of the time in which a rank gets its batch


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
        self.profiler = None
        if not self.directory:
            return
        with fail_together(world):
            if max(options.profile_ranks) >= world.size:
                raise TrainingError(f"--profile-ranks: there are {world.size} ranks, from 0. Use these numbers")
            if world.rank == 0:
                make_directory(self.directory, "--profile")
        atexit.register(self.end)
        if world.rank in options.profile_ranks:
            activities = [ProfilerActivity.CPU]
            if world.device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            steps = schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1)
            self.profiler = profile(activities=activities, schedule=steps)

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
                self.write()
        yield from batches  # as without a profile

    def write(self) -> None:
        """Write the traces of the profiled ranks, and print the tables of their operations."""
        table = ""
        with fail_together(self.world):
            if self.profiler:
                self.profiler.stop()
                self.profiler.export_chrome_trace(str(self.directory / f"trace-rank-{self.world.rank}.json"))
                order = f"self_{self.world.device.type}_time_total"  # by themselves
                table = self.profiler.key_averages().table(order, row_limit=SHOWN, max_name_column_width=40)
        self.profiler = None  # with its events, a million objects
        for rank, found in enumerate(gather(table, self.world) or ()):
            if found:
                self.report(f"profile of rank {rank}, {ACTIVE} steps:\n{found}")
        self.report(f"traces written to {self.directory}")

    def end(self) -> None:
        """Report at the end of the process that it took too few steps."""
        if self.profiler and self.taken:
            self.profiler.stop()
        if self.taken < STEPS:
            self.report(f"no profile: {self.taken} steps, {STEPS} are needed")
