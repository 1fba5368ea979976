#!/usr/bin/env python3
"""Prints the seconds that steps of lm_fsdp.py lose to an asynchronous checkpoint (A), and to a synchronous one (B).

checkpoint_cost.py DIRECTORY: one rank computes with one thread, so a second core is free.
"""

import sys
import time
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "payload"))

import lm_fsdp  # noqa: E402
import torch  # noqa: E402
from training.distributed import process_group  # noqa: E402
from training.language.options import parse_arguments  # noqa: E402
from training.language.text import Text  # noqa: E402
from training.sharded import Interval, ShardedCheckpoints  # noqa: E402

#: 10 million parameters, a checkpoint of 119 MB with the state of the optimizer. The steps are short.
OPTIONS = ("--size", "10M", "--context", "32", "--batch-size", "1", "--steps", "100000")
#: Steps without a checkpoint, whose median is the usual time of a step; checkpoints of each kind, in turn.
USUAL_STEPS = 10
CHECKPOINTS = 3


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
        sides = save(world, Path(sys.argv[1]))
    for side, seconds in zip("AB", sides):
        print(f"{side}: {seconds:.9f}")
