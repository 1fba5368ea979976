"""A small run for the tests of checkpoints: a network with what trains it, on the CPU."""

import torch
from torch import nn
from training.checkpoint import Run


def small_run(world, **settings):
    """A network with random masks, whose steps depend on the random state; and what trains it."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    return Run(network, optimizer, schedule, {"epochs": 3, **settings}, world)


def take_steps(run, count):
    for _ in range(count):
        run.optimizer.zero_grad()
        run.network(torch.randn(16, 4)).square().sum().backward()
        run.optimizer.step()
        run.schedule.step()
        run.position.step += 1


def first(state):
    """The optimizer's state of the first weight, float32 [8, 4]."""
    return state["optimizer"]["state"][0]
