#!/usr/bin/env python3
"""Prints both sides of a row on trainings, A and B: training_cost.py health|save DIRECTORY.

health  CPU seconds of a step of mnist_ddp.py with --health, and without. What --health adds is far below the noise of
        a training. So it is measured by many steps without a network, and added to the time of a step.
save    seconds that steps of lm_fsdp.py lose to an asynchronous checkpoint, and to a synchronous one

One rank computes with one thread, so a second core is free.
"""

import sys
import time
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "payload"))

import lm_fsdp  # noqa: E402
import mnist_ddp  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from training.distributed import process_group  # noqa: E402
from training.health import Health  # noqa: E402
from training.language.options import parse_arguments  # noqa: E402
from training.language.text import Text  # noqa: E402
from training.progress import Progress  # noqa: E402
from training.sharded import Interval, ShardedCheckpoints  # noqa: E402
from training.stopping import StopSignals  # noqa: E402

#: health: steps of the training; steps of an epoch, after which it reports, and epochs, without a network.
TRAINED_STEPS, EPOCH, EPOCHS = 20, 235, 50
#: save: 10 million parameters, a checkpoint of 119 MB with the state of the optimizer. The steps are short.
OPTIONS = ("--size", "10M", "--context", "32", "--batch-size", "1", "--steps", "100000")
#: save: steps without a checkpoint, whose median is the usual time of a step; checkpoints of each kind, in turn.
USUAL_STEPS, CHECKPOINTS = 10, 3


def health(world, _):
    """Return the CPU seconds of a step on 256 images with --health, and without."""
    options = mnist_ddp.parse_arguments(["--epochs", "1"])
    run, _ = mnist_ddp.set_up(options, 60000, world)
    model = DistributedDataParallel(run.network)
    batch = torch.randn(256, 1, 28, 28), torch.randint(10, (256,)), 256
    for steps in (2, TRAINED_STEPS):  # the first steps load libraries
        start = time.process_time()
        with Progress("", steps, enabled=False) as progress:
            mnist_ddp.train_epoch(model, run, [batch] * steps, progress, StopSignals(world, enabled=False))
        step = (time.process_time() - start) / steps
    return step + cpu_of_empty_steps(Health(world, lambda _line: None)) - cpu_of_empty_steps(None), step


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


def save(world, directory):
    """Return the median of the seconds that steps lose to an asynchronous checkpoint, and to a synchronous one."""
    options = parse_arguments(list(OPTIONS))
    tokens = torch.randint(256, (10_000,), dtype=torch.uint8)
    text = Text("random bytes", tokens, tokens, "")
    run = lm_fsdp.set_up(options, text, world)
    run.start_clock()
    batch = next(lm_fsdp.batches(options, run, text))

    def step():
        start = time.perf_counter()
        lm_fsdp.take_step(options, run, *batch)
        return time.perf_counter() - start

    with ShardedCheckpoints(directory, world, keep=1, every=Interval(steps=10**9)) as checkpoints:
        checkpoints.prepare()
        measure = partial(lost_seconds, checkpoints, run, step)
        measure(asynchronous=True)  # loads libraries, and allocates the copies
        pairs = [(measure(asynchronous=True), measure(asynchronous=False)) for _ in range(CHECKPOINTS)]
    return map(median, zip(*pairs))


def lost_seconds(checkpoints, run, step, *, asynchronous):
    """Return the seconds that steps lose from the start of a checkpoint to its end."""
    usual = median(step() for _ in range(USUAL_STEPS))
    start = time.perf_counter()
    checkpoints.start(run)
    steps = 0
    while asynchronous and not checkpoints.writing.done():
        step()
        steps += 1
    checkpoints.wait()
    return time.perf_counter() - start - steps * usual


if __name__ == "__main__":
    torch.set_num_threads(1)
    with process_group({}, use_gpu=False, timeout=60) as world:
        sides = {"health": health, "save": save}[sys.argv[1]](world, Path(sys.argv[2]))
    for side, seconds in zip("AB", sides):
        print(f"{side}: {seconds:.9f}")
