"""The order in which the ranks take the samples."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor


class GlobalBatchSampler:
    """Deal every global batch of an epoch out to the ranks.

    The batches depend on ``seed`` and the epoch, not on the number of ranks: batch ``i`` is
    ``order[i * batch_size : (i + 1) * batch_size]``, and rank ``r`` of ``W`` takes ``[r::W]`` of
    it. No sample is repeated or left out, so a rank's share of a batch may be one smaller than
    another's, and empty in a batch of fewer than ``W``.
    """

    def __init__(
        self,
        sample_count: int,
        batch_size: int,
        *,
        rank: int,
        world_size: int,
        seed: int,
        device: torch.device,
    ):
        self.sample_count = sample_count
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.device = device
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, whose order the next iteration follows."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches in an epoch, the same on every rank."""
        return math.ceil(self.sample_count / self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        """Yield this rank's indices, int64 of shape [n] on the device, and the global count."""
        # An epoch's seed is drawn from `seed`: with seed + epoch, neighbouring seeds would share
        # all epochs but one.
        generator = torch.Generator().manual_seed(self.seed)
        epoch_seed = torch.randint(2**31, (self.epoch + 1,), generator=generator)[-1]
        order = torch.randperm(self.sample_count, generator=generator.manual_seed(int(epoch_seed)))
        for batch in order.to(self.device).split(self.batch_size):
            yield batch[self.rank :: self.world_size], len(batch)
