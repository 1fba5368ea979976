# SPDX-License-Identifier: BSD-3-Clause
"""Reads images and labels from MNIST's IDX files, of which only as much is unpacked as the header announces."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import torch
from torch import Tensor

from training import TrainingError
from training.values import in_one_line

#: The files of MNIST: training images and labels, test images and labels.
NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
MOST_BYTES = 2**30  # of one file: a million images


def read_mnist(directory: Path) -> list[Tensor]:
    """Return the content of the four files in ``directory``, or in ``MNIST/raw`` there as torchvision has them.

    Images are uint8 [N, 28, 28], labels int64 [N]. Raises TrainingError if a file is missing or damaged.
    """
    raw = directory / "MNIST" / "raw"
    folder = raw if raw.is_dir() else directory
    tensors = []
    for images_name, labels_name in (NAMES[:2], NAMES[2:]):
        images = read_idx(folder / images_name)
        labels = read_idx(folder / labels_name)
        if images.shape != (len(labels), 28, 28) or not len(labels):
            raise TrainingError(
                f"{folder / images_name}: expected {len(labels)} images of 28 x 28 pixels, one for each label. Copy "
                "the files again"
            )
        tensors += [images, labels.long()]
    return tensors


def read_idx(path: Path) -> Tensor:
    """Read an IDX file of unsigned bytes, plain or as ``path`` with ``.gz``; raises TrainingError.

    The format: 0, 0, 8 and the number of dimensions, the size of each dimension as a big-endian 32-bit integer, then
    the bytes, last dimension fastest. Returns uint8 of those sizes.
    """
    try:
        with path.open("rb") if path.exists() else gzip.open(f"{path}.gz") as file:
            dimensions = file.read(4)[3]
            shape = [int.from_bytes(file.read(4), "big") for _ in range(dimensions)]
            content = file.read(min(math.prod(shape), MOST_BYTES) + 1)  # one more shows that there is more
        return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(shape)
    except (OSError, EOFError, IndexError, RuntimeError, ValueError, zlib.error) as error:
        raise TrainingError(
            f"{path}: cannot be read ({in_one_line(error)}). Set --data or MNIST_ROOT to the directory of the four "
            "MNIST files"
        ) from None
