# SPDX-License-Identifier: BSD-3-Clause
"""The images that the payload trains on, and their order for the ranks."""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Tuple

import torch
from torch import Tensor

from training.data.idx import read_mnist
from training.distributed import World
from training.schedule import epoch_order

# Mean and standard deviation of the pixels of MNIST's training images, on a scale of 0 to 1.
PIXEL_MEAN = 0.1307
PIXEL_DEVIATION = 0.3081


class Dataset(NamedTuple):
    """Images are uint8 of shape [N, 28, 28], labels int64 of shape [N] with values 0 to 9."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    source: str


def load_dataset(directory: Path) -> Dataset:
    """Return MNIST from the IDX files in ``directory``; TrainingError if a file is missing or damaged."""
    return Dataset._make([*read_mnist(directory), str(directory)])


def fingerprint(dataset: Dataset) -> str:
    """Return a checksum of all images and labels, independent of where their files are and how they are packed."""
    digest = hashlib.sha256()
    for tensor in dataset[:4]:
        content = ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())
        digest.update(f"{list(tensor.shape)}".encode() + content)
    return digest.hexdigest()[:32]


Samples = Tuple[Tensor, Tensor]


class Splits(NamedTuple):
    """Images [n, 1, 28, 28] and labels [n] to train on, to select the best epoch by, and to test on."""

    training: Samples
    selection: Samples
    test: Samples


def normalise(images: Tensor, device: torch.device) -> Tensor:
    """Turn uint8 [n, 28, 28] into float32 [n, 1, 28, 28] on ``device``, with mean 0 and standard deviation 1."""
    pixels = images.to(device).unsqueeze(1).float()
    return pixels.div_(255).sub_(PIXEL_MEAN).div_(PIXEL_DEVIATION)


def split(data: Dataset, device: torch.device, share: float | None, seed: int) -> Splits:
    """Normalise all images on ``device``, and hold out a random ``share`` of the training images to select by.

    Without one, the test images also select the best epoch. The same ``seed`` gives the same split.
    """
    images = normalise(data.train_images, device)
    labels = data.train_labels.to(device)
    test = (normalise(data.test_images, device), data.test_labels.to(device))
    if not share:
        return Splits((images, labels), test, test)
    count = round(share * len(labels))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(device)
    held, kept = order.split([count, len(order) - count])
    return Splits((images[kept], labels[kept]), (images[held], labels[held]), test)


@dataclass
class GlobalBatchSampler:
    """Deals every global batch of an epoch out to the ranks.

    The batches depend on ``seed`` and the epoch only, not on the number of ranks: batch ``i`` is
    ``order[i * batch_size : (i + 1) * batch_size]``, and rank ``r`` of ``W`` takes ``[r::W]`` of
    it. Every sample occurs once, so the shares of a batch may differ by one sample, and some are
    empty if the batch has fewer than ``W`` samples. Set ``epoch``, from 0, before each epoch.
    """

    sample_count: int
    batch_size: int
    world: World
    seed: int
    epoch: int = 0

    def __len__(self) -> int:
        """Return the number of batches in an epoch, the same on every rank."""
        return math.ceil(self.sample_count / self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        """Yield this rank's indices, int64 of shape [n] on the device, and the size of the global batch."""
        order = epoch_order(self.sample_count, self.seed, self.epoch)
        for batch in order.to(self.world.device).split(self.batch_size):
            yield batch[self.world.rank :: self.world.size], len(batch)


def device_batches(images: Tensor, labels: Tensor, batches: Iterable) -> Iterator:
    """Yield this rank's images and labels of each batch, and the size of the global batch."""
    for indices, batch_size in batches:
        yield images.index_select(0, indices), labels.index_select(0, indices), batch_size
