# SPDX-License-Identifier: BSD-3-Clause
"""The images that the payload trains on, generated for sites without the MNIST files, and their order for the ranks."""

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

from training import TrainingError
from training.data.download import NAMES, download_dataset, find_idx_files
from training.data.idx import read_labelled_images
from training.files import kind_of

# Mean and standard deviation of the pixels of MNIST's training images, on a scale of 0 to 1.
PIXEL_MEAN = 0.1307
PIXEL_DEVIATION = 0.3081
DIGITS_TRAIN, DIGITS_TEST = 6000, 1000
GLYPHS = (  # the digits 0 to 9 as 7 rows of 5 pixels
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00110 01000 10000 11111",
    "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)


class Dataset(NamedTuple):
    """Images are uint8 of shape [N, 28, 28], labels int64 of shape [N] with values 0 to 9."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    source: str


def digits_set() -> Dataset:
    """Return images of shifted, stretched, slanted, noisy digits.

    A fixed seed and integer arithmetic give the same bytes on every rank and every platform.
    """
    count = DIGITS_TRAIN + DIGITS_TEST
    generator = torch.Generator().manual_seed(28)

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high + 1, (count, *(shape or (1, 1))), generator=generator)

    labels = draw(0, 9)
    pixel_height, pixel_width = draw(2, 3), draw(2, 3)
    top = (28 - 7 * pixel_height) // 2 + draw(-3, 3)
    left = (28 - 5 * pixel_width) // 2 + draw(-3, 3)
    slant = draw(-2, 2)
    y, x = torch.arange(28).view(1, 28, 1), torch.arange(28).view(1, 1, 28)
    row = (y - top) // pixel_height
    column = (x - left + slant * (y - 14) // 8) // pixel_width
    inside = (row >= 0) & (row < 7) & (column >= 0) & (column < 5)
    glyphs = torch.tensor([[[int(p) for p in line] for line in g.split()] for g in GLYPHS])
    ink = draw(130, 255) * inside * glyphs[labels, row.clamp(0, 6), column.clamp(0, 4)]
    images = (ink + draw(0, 80, 28, 28)).clamp(max=255).to(torch.uint8)
    labels = labels.flatten()
    train, test = slice(DIGITS_TRAIN), slice(DIGITS_TRAIN, None)
    return Dataset(images[train], labels[train], images[test], labels[test], source="digits set")


def load_dataset(directory: Path | str | None, download: bool = False) -> Dataset:
    """Return MNIST from ``directory``, or the digits set without a directory.

    The four IDX files are in ``directory`` or in ``directory/MNIST/raw`` (where torchvision puts
    them), plain or gzip-compressed. With ``download``, missing files are downloaded first.
    Raises TrainingError if a file is missing or damaged.
    """
    if not directory:
        return digits_set()
    directory = Path(directory)
    if download:
        download_dataset(directory)
    try:
        if not directory.is_dir():
            what = f"{kind_of(directory.resolve())}, not a directory" if directory.exists() else "no such directory"
            raise TrainingError(f"{directory}: {what}. Set --data or MNIST_ROOT to the directory of the MNIST files")
        files = find_idx_files(directory)
    except OSError as error:
        raise TrainingError(f"{error.filename}: cannot be read ({error.strerror}). Check its permissions") from None
    missing = [name for name in NAMES if name not in files]
    if missing:
        raise TrainingError(
            f"{directory} holds no {missing[0]} or {missing[0]}.gz, neither directly nor in "
            "MNIST/raw. Set --data or MNIST_ROOT to the directory of the four MNIST files"
        )
    train_images, train_labels, test_images, test_labels = (files[name] for name in NAMES)
    train, test = read_labelled_images(train_images, train_labels), read_labelled_images(test_images, test_labels)
    return Dataset(*train, *test, source=str(directory))


def fingerprint(dataset: Dataset) -> str:
    """Return a checksum of all images and labels, independent of where their files are and how they are packed."""
    digest = hashlib.sha256()
    for tensor in dataset[:4]:
        digest.update(f"{list(tensor.shape)}".encode())
        tensor = tensor.contiguous()
        size = tensor.numel() * tensor.element_size()  # bytes; torch 2.0 has no nbytes
        digest.update((ctypes.c_char * size).from_address(tensor.data_ptr()))  # torch may be without NumPy
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

    Without one, the test images also select the best epoch. The same ``seed`` gives the same split. Raises
    TrainingError if one part would be empty.
    """
    images, labels = normalise(data.train_images, device), data.train_labels.to(device)
    test = normalise(data.test_images, device), data.test_labels.to(device)
    if not share:
        return Splits((images, labels), test, test)
    count = round(share * len(labels))
    if not 0 < count < len(labels):
        raise TrainingError(f"--validation {share:g} of {len(labels)} training images is {count}. Use another share")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(device)
    held, kept = order[:count], order[count:]
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
    rank: int
    world_size: int
    seed: int
    device: torch.device
    epoch: int = 0

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
