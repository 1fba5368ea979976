# SPDX-License-Identifier: BSD-3-Clause
"""Reports what a training runs on, and its progress: a bar on a terminal, a line every ten seconds in a log."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TextIO

import torch
import torch.distributed as dist

from training.accelerator import find_accelerator
from training.distributed import World

BAR_SECONDS = 0.1  # between two updates of the bar
LINE_SECONDS = 10  # between two lines in a log
BAR_WIDTH = 16  # characters
CLEAR_LINE = "\r\x1b[K"


def report_world(world: World, report: Callable[[str], None], work: str) -> None:
    """Report the ranks, their devices and ``work``, what they compute; and a GPU that is not used."""
    ranks = f"world size {world.size}, backend {dist.get_backend()}, device {world.device}"
    report(f"{ranks}, torch {torch.__version__}, {work}")
    if world.device.type == "cpu" and find_accelerator():
        report("A GPU is available; use --gpu to train on it")


@dataclass
class Progress:
    """The progress of one epoch of ``steps`` steps, of which an earlier start did ``first_step``.

    >>> with Progress("epoch 1/3", steps=235, enabled=rank == 0) as progress:
    ...     for step, batch in enumerate(batches, start=1):
    ...         loss = train(batch)
    ...         progress.update(step, loss.item)

    If ``stream`` (default: standard output) is a terminal, the bar is one line that is cleared at
    the end. ``enabled`` is True on one rank only.
    """

    name: str
    steps: int
    first_step: int = 0
    stream: TextIO = field(default_factory=lambda: sys.stdout)
    enabled: bool = True

    def __post_init__(self):
        self.is_bar = self.stream.isatty() and os.environ.get("TERM") != "dumb"
        self.interval = LINE_SECONDS
        if self.is_bar:
            self.interval = BAR_SECONDS
        self.start = time.perf_counter()
        self.next_report = self.start + self.interval if self.enabled else float("inf")

    def update(self, step: int, mean_loss: Callable[[], float]) -> None:
        """Report that ``step`` steps are done, if the interval is over.

        ``mean_loss`` is called only then: reading a loss from a GPU waits for the GPU.
        """
        now = time.perf_counter()
        if now < self.next_report:
            return
        loss = mean_loss()
        percent = 100 * step // self.steps
        line = f"{self.name}  {percent} %  loss {loss:.4f} (rank 0)\n"
        if self.is_bar:
            rate = (step - self.first_step) / (now - self.start)
            left = timedelta(seconds=round((self.steps - step) / rate))
            bar = ("#" * (BAR_WIDTH * step // self.steps)).ljust(BAR_WIDTH, "-")
            line = f"{self.name}  [{bar}] {percent:3} %  loss {loss:.4f}  {rate:.3g} steps/s  {left} left"
            # a line that wraps cannot be cleared
            line = CLEAR_LINE + line[: shutil.get_terminal_size().columns - 1]
        self.stream.write(line)
        self.stream.flush()
        self.next_report = now + self.interval

    def done(self) -> None:
        """Clear the bar."""
        if self.is_bar and self.next_report < float("inf"):
            self.stream.write(CLEAR_LINE)
            self.stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *fault: object) -> None:
        self.done()
