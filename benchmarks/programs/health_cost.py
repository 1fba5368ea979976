#!/usr/bin/env python3
"""Prints the CPU seconds of a step of mnist_ddp.py with --health (A) and without (B): the row `health`.

What --health adds is far below the noise of a training. So it is measured by many steps without a network, with and
without it, and added to the time of a step.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "payload"))

import mnist_ddp  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from training.distributed import process_group  # noqa: E402
from training.health import Health  # noqa: E402
from training.progress import Progress  # noqa: E402
from training.stopping import StopSignals  # noqa: E402

STEPS = 20  # of the training
EPOCH = 235  # steps, after which --health reports
EPOCHS = 50  # without a network


def cpu_of_a_step(world):
    """Return the CPU seconds of a step on 256 images, with one thread."""
    torch.set_num_threads(1)
    options = mnist_ddp.parse_arguments(["--epochs", "1"])
    run, _ = mnist_ddp.set_up(options, 60000, world)
    model = DistributedDataParallel(run.network)
    batch = torch.randn(256, 1, 28, 28), torch.randint(10, (256,)), 256
    for steps in (2, STEPS):  # the first steps load libraries
        start = time.process_time()
        with Progress("", steps, enabled=False) as progress:
            mnist_ddp.train_epoch(model, run, [batch] * steps, progress, StopSignals(world, enabled=False))
        seconds = time.process_time() - start
    return seconds / STEPS


def cpu_of_empty_steps(health):
    """Return the CPU seconds of a step without a network, with its share of the report after an epoch."""
    network = nn.Identity()
    if health:
        health.watch(network)
    start = time.process_time()
    for _ in range(EPOCHS):
        steps = range(EPOCH)
        for step in health.batches(steps) if health else steps:
            network(step)
        if health:
            health.end_epoch("")
    return (time.process_time() - start) / (EPOCHS * EPOCH)


def main():
    """Measure and print both sides."""
    with process_group({}, use_gpu=False, timeout=60) as world:
        step = cpu_of_a_step(world)
        added = cpu_of_empty_steps(Health(world, lambda _line: None)) - cpu_of_empty_steps(None)
    print(f"A: {step + added:.9f}\nB: {step:.9f}")


if __name__ == "__main__":
    main()
