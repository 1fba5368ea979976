"""Times what a rank does alone in a step, without waiting for other ranks and without waiting for its GPU."""

from __future__ import annotations

import time

import torch

from training.accelerator import module_of

# Steps at the start that are not timed: libraries load, and DistributedDataParallel rebuilds its buckets in the
# second one, for which it waits for rank 0.
UNTIMED = 2
TIMED_ONE_IN = 8  # on a GPU: recording a pair of events takes some microseconds


class HostClock:
    """Times every step by the wall clock: a CPU that is shared with other processes is slow."""

    def __init__(self):
        self.begun = self.steps = 0
        self.seconds = self.step_seconds = self.started = 0.0

    def begin_step(self) -> None:
        self.begun += 1
        self.step_seconds = 0.0

    def start(self) -> None:
        self.started = time.perf_counter()

    def stop(self) -> None:
        self.step_seconds += time.perf_counter() - self.started

    def end_step(self) -> None:
        if self.begun > UNTIMED:
            self.steps += 1
            self.seconds += self.step_seconds

    def read(self) -> tuple[int, float]:
        """Return how many steps were timed so far, and their seconds."""
        return self.steps, self.seconds


class DeviceClock:
    """Times one step in eight by pairs of events on the device's stream.

    A pair is read when the device has passed it, and never waited for: no step has a synchronisation more. The device
    passes the first event of a step when the collectives of the step before have ended.
    """

    def __init__(self, device: torch.device):
        self.new_event = module_of(device).Event
        self.begun = self.steps = 0
        self.seconds = 0.0
        self.is_timed = False
        self.pairs: list[tuple] = []  # of this step
        self.pending: list[list[tuple]] = []  # of the steps that the device has not passed yet
        self.first = None

    def begin_step(self) -> None:
        self.begun += 1
        self.is_timed = self.begun > UNTIMED and self.begun % TIMED_ONE_IN == 0
        self.pairs = []

    def start(self) -> None:
        if self.is_timed:
            self.first = self.record()

    def stop(self) -> None:
        if self.is_timed:
            self.pairs.append((self.first, self.record()))

    def end_step(self) -> None:
        if self.is_timed:
            self.read()
            self.pending.append(self.pairs)
            self.is_timed = False

    def record(self):
        event = self.new_event(enable_timing=True)
        event.record()
        return event

    def read(self) -> tuple[int, float]:
        """Return how many steps were timed so far, and their seconds."""
        while self.pending and self.pending[0][-1][1].query():
            self.seconds += sum(first.elapsed_time(last) for first, last in self.pending.pop(0)) / 1000
            self.steps += 1
        return self.steps, self.seconds


def clock_of(device: torch.device) -> HostClock | DeviceClock:
    """Return a clock for the steps of a training on ``device``."""
    return HostClock() if device.type == "cpu" else DeviceClock(device)
