# SPDX-License-Identifier: BSD-3-Clause
"""Reports what a training runs on, and its loss within an epoch."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from training.distributed import World

INTERVAL = 10  # seconds between two lines


def reporter(world: World) -> Callable[[str], None]:
    """Return a function that prints a line on rank 0, and nothing on the others."""
    if world.rank == 0:
        return partial(print, flush=True)
    return lambda _line: None


def report_world(world: World, report: Callable[[str], None], work: str) -> None:
    """Report the ranks, their devices and ``work``, what they compute; and a GPU that is not used."""
    ranks = f"world size {world.size}, backend {dist.get_backend()}, device {world.device}"
    report(f"{ranks}, torch {torch.__version__}, {work}")
    if world.device.type == "cpu" and torch.cuda.is_available():
        report("A GPU is available; use --gpu to train on it")


class Progress:
    """Reports a line every ten seconds: the share of ``steps``, and the loss of rank 0.

    >>> progress = Progress("epoch 1/3", steps=235, enabled=rank == 0)
    >>> for step, batch in enumerate(batches, start=1):
    ...     loss = train(batch)
    ...     progress.update(step, loss.item)

    ``enabled`` is True on one rank only.
    """

    def __init__(self, name: str, steps: int, *, enabled: bool = True):
        self.name = name
        self.steps = steps
        self.enabled = enabled
        self.next_report = time.perf_counter() + INTERVAL

    def update(self, step: int, mean_loss: Callable[[], float]) -> None:
        """Report that ``step`` steps are done, if the interval is over.

        ``mean_loss`` is called only then: reading a loss from a GPU waits for the GPU.
        """
        if self.enabled and time.perf_counter() >= self.next_report:
            percent = 100 * step // self.steps
            print(f"{self.name}  {percent} %  loss {mean_loss():.4f} (rank 0)", flush=True)
            self.next_report = time.perf_counter() + INTERVAL
