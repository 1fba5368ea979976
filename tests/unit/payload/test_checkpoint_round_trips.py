"""A checkpoint of each optimizer, schedule and kind of network goes on, in fresh objects, as an uninterrupted run."""

import pytest
import torch
from small_runs import NETWORKS, OPTIMIZERS, SCHEDULES, assert_continues, plain, small_run
from torch import nn

pytestmark = pytest.mark.slow


def by_name(cases):
    """What makes the cases, with their names for pytest."""
    return [pytest.param(case.make, id=case.name) for case in cases]


@pytest.mark.parametrize("optimizer", by_name(OPTIMIZERS))
def test_an_optimizer_continues(checkpoints, alone, optimizer):
    assert_continues(lambda: small_run(alone, optimizer), checkpoints)


@pytest.mark.parametrize("schedule", by_name(SCHEDULES))
def test_a_schedule_continues(checkpoints, alone, schedule):
    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    assert_continues(lambda: small_run(alone, sgd, schedule), checkpoints)


@pytest.mark.parametrize("network", by_name(NETWORKS))
def test_a_network_continues(checkpoints, alone, network):
    assert_continues(lambda: small_run(alone, network=network), checkpoints)


def test_an_optimizer_of_sparse_gradients_continues(checkpoints, alone):
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(10, 2, sparse=True)

        def forward(self, inputs):
            return self.words((inputs * 3).long().clamp(0, 9))

    assert_continues(lambda: small_run(alone, torch.optim.SparseAdam, network=Table), checkpoints)


@pytest.mark.parametrize("before", by_name(NETWORKS[:6]))
@pytest.mark.parametrize("after", by_name(NETWORKS[:6]))
def test_a_network_continues_however_it_was_wrapped(checkpoints, alone, before, after):
    saved = small_run(alone, network=before)
    saved.save(checkpoints)
    resumed = small_run(alone, network=after)
    for parameter in resumed.network.parameters():
        nn.init.zeros_(parameter)
    assert resumed.resume(checkpoints)
    for one, other in zip(saved.network.parameters(), resumed.network.parameters()):
        assert torch.equal(one, other)
    path = next(iter(checkpoints.paths()))
    plain().load_state_dict(torch.load(path, weights_only=True)["model"])
