"""A dataset in memory: its images and labels, loaded, normalised and split."""

from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from training import TrainingError
from training.data.digits import draw_digits
from training.data.download import download_dataset
from training.data.idx import read_labelled_images
from training.data.mnist import NAMES, TEST_IMAGES, TEST_LABELS, TRAIN_IMAGES, TRAIN_LABELS, find_idx_files

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


def load_dataset(directory: Path | str | None, download: bool = False) -> Dataset:
    """Return the MNIST of ``directory``, or the digits set where no directory is named.

    The four IDX files lie in ``directory`` or in ``directory/MNIST/raw`` (where torchvision puts
    them), plain or gzip-compressed. With ``download``, those that are missing are fetched first.
    Raises TrainingError where one is missing or damaged.
    """
    if not directory:
        return digits_set()
    directory = Path(directory)
    if download:
        download_dataset(directory)
    files = find_idx_files(directory)
    missing = [name for name in NAMES if name not in files]
    if missing:
        raise TrainingError(
            f"{directory} holds no {missing[0]} or {missing[0]}.gz, neither directly nor in "
            "MNIST/raw; name the directory of the four MNIST files with --data or MNIST_ROOT"
        )
    train = read_labelled_images(files[TRAIN_IMAGES], files[TRAIN_LABELS])
    test = read_labelled_images(files[TEST_IMAGES], files[TEST_LABELS])
    return Dataset(*train, *test, source=str(directory))


def digits_set() -> Dataset:
    """Return the digits set."""
    return Dataset(*draw_digits(), source="digits set")


def fingerprint(dataset: Dataset) -> str:
    """Return a name of all images and labels, the same wherever their files lie and however they are packed."""
    digest = hashlib.sha256()
    for tensor in dataset[:4]:
        digest.update(f"{list(tensor.shape)}".encode())
        tensor = tensor.contiguous()
        size = tensor.numel() * tensor.element_size()  # bytes; torch 2.0 has no nbytes
        digest.update((ctypes.c_char * size).from_address(tensor.data_ptr()))  # torch may be without NumPy
    return digest.hexdigest()[:32]


def normalise(images: Tensor, device: torch.device) -> Tensor:
    """Turn uint8 [N, 28, 28] into float32 [N, 1, 28, 28] on ``device``, around 0 with width 1."""
    pixels = images.to(device).unsqueeze(1).float()
    return pixels.div_(255).sub_(PIXEL_MEAN).div_(PIXEL_DEVIATION)


def hold_out(images: Tensor, labels: Tensor, share: float, seed: int) -> tuple[tuple, tuple]:
    """Split samples into those to train with and a ``share`` of them to choose by, at random.

    ``images`` [N, ...] and ``labels`` [N] come back as two pairs of [N - n, ...] and [n, ...], where n
    is N times the share, rounded; the same for the same ``seed``. Raises TrainingError where one
    would be empty.
    """
    count = round(share * len(labels))
    if not 0 < count < len(labels):
        raise TrainingError(
            f"--validation {share:g} of {len(labels)} training images is {count}; take another share"
        )
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
    held, kept = order[:count], order[count:]
    return (images[kept], labels[kept]), (images[held], labels[held])
