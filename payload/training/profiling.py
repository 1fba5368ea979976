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
        self.table = ""
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
            if world.device.type != "cpu":
                activities.append(getattr(ProfilerActivity, world.device.type.upper()))
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
                with fail_together(self.world):
                    if self.profiler:
                        self.write(self.profiler)
                self.profiler = None  # with its events, a million objects
                self.show()
        yield from batches  # as without a profile

    def write(self, profiler: profile) -> None:
        """Write the trace of this rank, and keep the table of its operations; raises TrainingError."""
        profiler.stop()
        path = self.directory / f"trace-rank-{self.world.rank}.json"
        path.unlink(missing_ok=True)
        profiler.export_chrome_trace(str(path))
        # torch reports no error: on a full disk, the file is absent or cut short, without its last entry
        if not path.is_file() or b'"traceName"' not in path.read_bytes()[-(2**13) :]:
            raise TrainingError(f"{path}: cannot be written. Check its directory, or use another --profile")
        order = f"self_{self.world.device.type}_time_total"  # by themselves
        self.table = profiler.key_averages().table(order, row_limit=SHOWN, max_name_column_width=40)

    def show(self) -> None:
        """Print the tables of the profiled ranks."""
        for rank, table in enumerate(gather(self.table, self.world) or ()):
            if table:
                self.report(f"profile of rank {rank}, {ACTIVE} steps:\n{table}")
        self.report(f"traces written to {self.directory}")

    def end(self) -> None:
        """Report at the end of the process that it took too few steps."""
        if self.profiler and self.taken:
            self.profiler.stop()
        if self.taken < STEPS:
            self.report(f"no profile: {self.taken} steps, {STEPS} are needed")
