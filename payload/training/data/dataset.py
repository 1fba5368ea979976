"""Loads a dataset into memory and identifies it."""

from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from training import TrainingError
from training.data.digits import draw_digits
from training.data.download import download_dataset
from training.data.idx import read_labelled_images
from training.data.mnist import NAMES, TEST_IMAGES, TEST_LABELS, TRAIN_IMAGES, TRAIN_LABELS, find_idx_files


class Dataset(NamedTuple):
    """Images are uint8 of shape [N, 28, 28], labels int64 of shape [N] with values 0 to 9."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    source: str


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
    files = find_idx_files(directory)
    missing = [name for name in NAMES if name not in files]
    if missing:
        raise TrainingError(
            f"{directory} holds no {missing[0]} or {missing[0]}.gz, neither directly nor in "
            "MNIST/raw. Set --data or MNIST_ROOT to the directory of the four MNIST files"
        )
    train = read_labelled_images(files[TRAIN_IMAGES], files[TRAIN_LABELS])
    test = read_labelled_images(files[TEST_IMAGES], files[TEST_LABELS])
    return Dataset(*train, *test, source=str(directory))


def digits_set() -> Dataset:
    """Return the generated digits as a dataset."""
    return Dataset(*draw_digits(), source="digits set")


def fingerprint(dataset: Dataset) -> str:
    """Return a checksum of all images and labels, independent of where their files are and how they are packed."""
    digest = hashlib.sha256()
    for tensor in dataset[:4]:
        digest.update(f"{list(tensor.shape)}".encode())
        tensor = tensor.contiguous()
        size = tensor.numel() * tensor.element_size()  # bytes; torch 2.0 has no nbytes
        digest.update((ctypes.c_char * size).from_address(tensor.data_ptr()))  # torch may be without NumPy
    return digest.hexdigest()[:32]




