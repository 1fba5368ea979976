"""A small run for the tests of checkpoints: a network with what trains it, on the CPU; and weights of trainings."""

from functools import partial

import torch
from torch import nn
from training.checkpoint import Run

ADAM = partial(torch.optim.Adam, lr=0.1)


def small_run(world, optimizer=ADAM, **settings):
    """A network with random masks, whose steps depend on the random state; and what trains it."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = optimizer(network.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    return Run(network, optimizer, schedule, {"epochs": 3, **settings}, world)


def take_steps(run, count):
    def closure():
        run.optimizer.zero_grad()
        loss = run.network(torch.randn(16, 4)).square().sum()
        loss.backward()
        return loss

    for _ in range(count):
        run.optimizer.step(closure)
        run.schedule.step()
        run.position.step += 1


def change_file(path, change):
    """Change the state in a checkpoint."""
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, path)


def first(state):
    """The optimizer's state of the first weight, float32 [8, 4]."""
    return state["optimizer"]["state"][0]


def weights(directory):
    """The weights that a training wrote to a directory."""
    return torch.load(directory / "mnist_ddp.pt", weights_only=True)


def equal(one, other):
    """Whether two sets of weights are the same, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def flip_bit(path, place):
    """Flip a bit of the byte at a place in a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << place % 8
    path.write_bytes(content)
