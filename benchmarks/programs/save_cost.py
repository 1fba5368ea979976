"""Print the seconds that the steps of a training lose to an asynchronous and to a synchronous sharded checkpoint.

save_cost.py PAYLOAD DIRECTORY
"""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import SimpleNamespace

sys.path.insert(0, sys.argv[1])

import torch
from torch import nn
from training.distributed import process_group
from training.sharded import Interval, ShardedCheckpoints

WIDTH, LAYERS = 1024, 8  # 8.4 million parameters: a checkpoint of 101 MB with the state of Adam
STEPS = 20  # whose median is the time of a step without a checkpoint


@dataclass
class Position:
    step: int = 0


def build(world):
    torch.manual_seed(0)
    network = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    return SimpleNamespace(
        network=network, optimizer=optimizer, schedule=schedule, settings={}, data=None, world=world,
        position=Position(),
    )  # fmt: skip


def take_step(run, batch):
    """Take a step and return its seconds."""
    start = time.perf_counter()
    run.optimizer.zero_grad()
    run.network(batch).square().mean().backward()
    run.optimizer.step()
    run.position.step += 1
    return time.perf_counter() - start


def lost_seconds(checkpoints, run, batch, *, asynchronous):
    """Return the seconds that steps lose from the begin of a checkpoint to its end."""
    usual = median(take_step(run, batch) for _ in range(STEPS))
    start = time.perf_counter()
    checkpoints.start(run, asynchronous=asynchronous)
    steps = 0
    while checkpoints.writing and not checkpoints.writing.done():
        take_step(run, batch)
        steps += 1
    checkpoints.wait()
    return time.perf_counter() - start - steps * usual


def main():
    torch.set_num_threads(1)
    with process_group(os.environ, use_gpu=False, timeout=60) as world:
        run, batch = build(world), torch.randn(64, WIDTH)
        with ShardedCheckpoints(Path(sys.argv[2]), world, keep=1, every=Interval(steps=10**9)) as checkpoints:
            checkpoints.prepare()
            lost_seconds(checkpoints, run, batch, asynchronous=True)  # allocates the copies
            for name in ("asynchronous", "synchronous"):
                print(f"{name}: {lost_seconds(checkpoints, run, batch, asynchronous=name == 'asynchronous'):.4f}")


if __name__ == "__main__":
    main()
