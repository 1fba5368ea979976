# SPDX-License-Identifier: BSD-3-Clause
"""How often a checkpoint is written: after so many steps, or so much time, for the option --every."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from typing import NamedTuple

SECONDS = {"s": 1, "m": 60, "h": 3600}


class Interval(NamedTuple):
    """A number of steps, or of seconds; the other one is 0."""

    steps: int = 0
    seconds: float = 0

    def __str__(self) -> str:
        return f"{self.steps}" if self.steps else f"{self.seconds:g}s"


def parse_interval(text: str) -> Interval:
    """Return the interval of ``500``, ``90s``, ``30m`` or ``1.5h``; argparse.ArgumentTypeError for other texts."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smh]?)", text)
    number = float(match[1]) if match else 0
    if number <= 0 or (not match[2] and "." in match[1]):
        raise argparse.ArgumentTypeError(
            f"must be a number of steps, or a time such as 90s, 30m or 2h, found {text[:40]}"
        )
    return Interval(seconds=number * SECONDS[match[2]]) if match[2] else Interval(steps=int(number))


class Timer:
    """Decides after which steps a checkpoint is due: the same on all ranks, which all ask after every step.

    The clocks of the ranks differ, so rank 0 decides about time. It estimates from its pace how many steps
    are left, and the ranks agree to ask it again after half of them: in an interval of n steps it is asked
    about log2(n) times. ``ask`` returns rank 0's value of a function on all ranks.
    """

    def __init__(
        self,
        every: Interval,
        ask: Callable[[Callable[[], int]], int],
        clock: Callable[[], float] | None = None,
    ):
        self.every = every
        self.ask = ask
        self.clock = clock or time.monotonic
        self.start(0)

    def start(self, step: int) -> None:
        """Begin a new interval after ``step`` steps."""
        self.began, self.first = self.clock(), step
        self.next_question = step + 1

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due after ``step`` steps."""
        if self.every.steps:
            return step % self.every.steps == 0
        if step < self.next_question:
            return False
        steps = self.ask(lambda: self.steps_left(step))
        self.next_question = step + max(1, steps // 2)
        return steps == 0

    def steps_left(self, step: int) -> int:
        """Return how many steps are left, by this rank's clock and pace; 0 if the interval is over."""
        passed = self.clock() - self.began
        left = self.every.seconds - passed
        pace = passed / max(1, step - self.first)
        return 0 if left <= 0 else max(1, int(min(left / max(pace, 1e-9), 2**40)))
