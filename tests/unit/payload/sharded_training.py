"""A small training with FSDP2 and sharded checkpoints, as each rank of the tests runs it.

sharded_training.py DIRECTORY STEPS [--every N] [--keep K] [--width W] [--synchronous] [--lr X] [--pause SECONDS] ...
"""

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from training.distributed import process_group
from training.failing import fail_in_one_line
from training.sharded import Interval, ShardedCheckpoints, parse_interval
from training.stopping import StopSignals


@dataclass
class Position:
    """How far the training is."""

    step: int = 0
    seconds: float = 0.0


def build(options, world):
    """A network whose first weight has fewer rows than four ranks, with what trains it."""
    torch.manual_seed(0)
    width = options.width
    network = nn.Sequential(nn.Linear(8, 3), nn.Tanh(), nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1))
    if options.parallel == "fsdp":
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (world.size,))
        fully_shard(network[2], mesh=mesh)
        fully_shard(network, mesh=mesh)
    groups = [
        {"params": [each for each in network.parameters() if each.dim() == 2], "weight_decay": 0.1},
        {"params": [each for each in network.parameters() if each.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=options.lr, fused=options.fused)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 50))
    settings = {"width": options.width, "lr": options.lr}
    return SimpleNamespace(
        network=network,
        optimizer=optimizer,
        schedule=schedule,
        settings=settings,
        data="digits",
        world=world,
        position=Position(),
    )


def take_step(run):
    """One step of all ranks on a batch of 16 that the step decides; returns the loss of all."""
    generator = torch.Generator().manual_seed(run.position.step)
    data = torch.randn(16, 8, generator=generator)
    mine = data[run.world.rank :: run.world.size]
    loss = (run.network(mine) - mine.sum(1, keepdim=True)).square().mean()
    run.optimizer.zero_grad()
    loss.backward()
    if not hasattr(run.network[0].weight, "device_mesh") and run.world.size > 1:
        for weight in run.network.parameters():
            torch.distributed.all_reduce(weight.grad)
            weight.grad /= run.world.size
    run.optimizer.step()
    run.schedule.step()
    run.position.step += 1
    loss = loss.detach().clone()
    torch.distributed.all_reduce(loss)
    return loss.item() / run.world.size


def train(options, world):
    report = print if world.rank == 0 else lambda *_, **__: None
    with StopSignals(world, interval=4) as stop, ShardedCheckpoints(
        options.directory / "checkpoints",
        world,
        keep=options.keep,
        every=options.every,
        asynchronous=not options.synchronous,
    ) as checkpoints:
        checkpoints.prepare(restart=options.restart)
        run = build(options, world)
        file = checkpoints.resume(run)
        report(f"world {world.size}: {f'resuming from {file}' if file else 'starting'}", flush=True)
        while run.position.step < options.steps:
            loss = take_step(run)
            report(f"step {run.position.step} loss {loss:.9f}", flush=True)
            time.sleep(options.pause)
            checkpoints.save_if_due(run)
            if stop.agreed():
                report(f"stopped, saved in {checkpoints.save(run)}", flush=True)
                raise SystemExit(stop.status)
        checkpoints.save(run)
    weights = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in run.network.parameters()]
    if world.rank == 0:
        torch.save([each.detach() for each in weights], options.directory / "weights.pt")


def main():
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("directory", type=Path)
    add("steps", type=int)
    add("--every", type=parse_interval, default=Interval(steps=5))
    add("--keep", type=int, default=2)
    add("--width", type=int, default=13)
    add("--lr", type=float, default=0.05)
    add("--pause", type=float, default=0)
    add("--parallel", default="fsdp")
    for name in ("synchronous", "restart", "fused"):
        add(f"--{name}", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with fail_in_one_line(), process_group(os.environ, use_gpu=False, timeout=600) as world:
        train(options, world)


if __name__ == "__main__":
    main()
