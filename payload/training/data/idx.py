# SPDX-License-Identifier: BSD-3-Clause
"""Reads images and labels from IDX files, within bounds and with every byte accounted for."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

import torch
from torch import Tensor

from training import TrainingError
from training.files import read_file

MOST_IDX_BYTES = 2**30  # limit for one file: a million images
REMEDY = "Copy or download the file again"


def read_labelled_images(images_file: Path, labels_file: Path) -> tuple[Tensor, Tensor]:
    """Return uint8 images [N, 28, 28] and int64 labels [N]; raises TrainingError."""
    images = read_idx(images_file, dimensions=3)
    labels = read_idx(labels_file, dimensions=1).long()
    found = list(images.shape[1:]), len(labels), int(labels.max())
    for path, is_right, expected in (
        (images_file, found[0] == [28, 28], f"images of 28 x 28 pixels, found {found[0]}"),
        (labels_file, found[1] == len(images), f"{len(images)} labels, one for each image, found {found[1]}"),
        (labels_file, found[2] <= 9, f"labels from 0 to 9, found {found[2]}"),
    ):
        if not is_right:
            raise TrainingError(f"{path}: expected {expected}. {REMEDY}")
    return images, labels


def read_idx(path: Path, *, dimensions: int) -> Tensor:
    """Read an IDX file of unsigned bytes, gzip-compressed if its name ends in ``.gz``.

    The format: the magic number 0x00 0x00 0x08 ``dimensions``, the size of each dimension as a
    big-endian 32-bit integer, then the bytes, last dimension fastest.
    Returns uint8 of those sizes. Raises TrainingError if the file has another format.
    """
    try:
        content = read_file(path, MOST_IDX_BYTES)
        if path.suffix == ".gz":
            with gzip.open(io.BytesIO(content)) as stream:
                content = stream.read(MOST_IDX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise TrainingError(f"{path}: cannot be read ({error}). {REMEDY}") from None
    magic, header = bytes((0, 0, 8, dimensions)), 4 + 4 * dimensions
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    size = header + torch.Size(shape).numel()
    for is_right, expected in (
        (len(content) <= MOST_IDX_BYTES, f"at most {MOST_IDX_BYTES} bytes, found more"),
        (content[:4] == magic, f"the magic number 0x{magic.hex()}, found 0x{content[:4].hex()}"),
        (len(content) == size, f"{size} bytes for the shape {shape} that its header gives, found {len(content)}"),
        (size > header, f"at least one entry, found the shape {shape}"),
    ):
        if not is_right:
            raise TrainingError(f"{path}: expected {expected}. {REMEDY}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header).view(shape)
