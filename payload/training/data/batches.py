# SPDX-License-Identifier: BSD-3-Clause
"""The order in which the ranks take the samples, and the batches in that order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


class GlobalBatchSampler:
    """Deals every global batch of an epoch out to the ranks.

    The batches depend on ``seed`` and the epoch only, not on the number of ranks: batch ``i`` is
    ``order[i * batch_size : (i + 1) * batch_size]``, and rank ``r`` of ``W`` takes ``[r::W]`` of
    it. Every sample occurs once, so the shares of a batch may differ by one sample, and some are
    empty if the batch has fewer than ``W`` samples.
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
        """Select the epoch, from 0, whose order the next iteration follows."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches in an epoch, the same on every rank."""
        return math.ceil(self.sample_count / self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        """Yield this rank's indices, int64 of shape [n] on the device, and the size of the global batch."""
        # The seed of an epoch is drawn at random from `seed`: with seed + epoch, neighbouring seeds
        # would share all epochs but one.
        generator = torch.Generator().manual_seed(self.seed)
        epoch_seed = torch.randint(2**31, (self.epoch + 1,), generator=generator)[-1]
        order = torch.randperm(self.sample_count, generator=generator.manual_seed(int(epoch_seed)))
        for batch in order.to(self.device).split(self.batch_size):
            yield batch[self.rank :: self.world_size], len(batch)


def device_batches(images: Tensor, labels: Tensor, batches: Iterable) -> Iterator:
    """Yield this rank's images and labels of each batch, and the size of the global batch."""
    for indices, batch_size in batches:
        yield images.index_select(0, indices), labels.index_select(0, indices), batch_size
