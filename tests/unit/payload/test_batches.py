"""training/data: the order in which the ranks take the samples."""

import pytest
import torch
from training.data import GlobalBatchSampler

CPU = torch.device("cpu")


def sampler(count=130, batch=32, rank=0, size=1, seed=0, epoch=0):
    made = GlobalBatchSampler(count, batch, rank=rank, world_size=size, seed=seed, device=CPU)
    made.epoch = epoch
    return made


def epoch_order(**settings):
    return torch.cat([indices for indices, _ in sampler(**settings)])


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_ranks_shares_are_the_global_batch_dealt_out(size):
    alone = list(sampler())
    shares = [list(sampler(rank=rank, size=size)) for rank in range(size)]
    for step, (batch, count) in enumerate(alone):
        dealt = torch.empty(count, dtype=torch.int64)
        for rank in range(size):
            indices, global_count = shares[rank][step]
            assert global_count == count == len(batch)
            dealt[rank::size] = indices
        assert torch.equal(dealt, batch)


def test_the_last_batch_is_short_and_may_leave_a_rank_empty_handed():
    batches = list(sampler(rank=2, size=3))
    assert len(batches) == len(sampler(rank=2, size=3)) == 5
    assert [count for _, count in batches] == [32, 32, 32, 32, 2]
    assert len(batches[-1][0]) == 0


def test_each_epoch_of_each_seed_has_an_order_of_its_own_and_always_the_same():
    def draw():
        return [epoch_order(seed=seed, epoch=epoch).tolist() for seed in range(4) for epoch in range(4)]

    orders = draw()
    assert all(sorted(order) == list(range(130)) for order in orders)
    assert len(set(map(tuple, orders))) == 16 and draw() == orders
