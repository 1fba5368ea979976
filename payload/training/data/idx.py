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


def read_labelled_images(images_file: Path, labels_file: Path) -> tuple[Tensor, Tensor]:
    """Return uint8 images [N, 28, 28] and int64 labels [N]; raises TrainingError."""
    images = read_idx(images_file, dimensions=3)
    labels = read_idx(labels_file, dimensions=1).long()
    if images.shape[1:] != (28, 28):
        raise TrainingError(
            f"{images_file}: expected images of 28 x 28 pixels, found the shape "
            f"{list(images.shape)}. Replace it with the MNIST file"
        )
    if len(labels) != len(images):
        raise TrainingError(
            f"{labels_file}: expected {len(images)} labels, one for each image of "
            f"{images_file.name}, found {len(labels)}. Take both files from the same source"
        )
    if labels.max() > 9:
        raise TrainingError(
            f"{labels_file}: expected labels from 0 to 9, found {labels.max()}. Replace it with the MNIST file"
        )
    return images, labels


def read_idx(path: Path, *, dimensions: int) -> Tensor:
    """Read an IDX file of unsigned bytes, gzip-compressed if its name ends in ``.gz``.

    The format: the magic number 0x00 0x00 0x08 ``dimensions``, the size of each dimension as a
    big-endian 32-bit integer, then the bytes, last dimension fastest.
    Returns uint8 of those sizes. Raises TrainingError if the file has another format.
    """
    remedy = "Copy or download the file again"
    try:
        content = read_file(path, MOST_IDX_BYTES)
        if path.suffix == ".gz":
            with gzip.open(io.BytesIO(content)) as stream:
                content = stream.read(MOST_IDX_BYTES + 1)
            if len(content) > MOST_IDX_BYTES:
                raise TrainingError(f"{path}: expands to more than {MOST_IDX_BYTES} bytes. {remedy}")
    except EOFError:
        raise TrainingError(
            f"{path}: expected a complete gzip stream, found one truncated after {len(content)} bytes. {remedy}"
        ) from None
    except (OSError, zlib.error) as error:
        raise TrainingError(f"{path}: cannot be read ({error}). {remedy}") from None
    magic = bytes((0, 0, 8, dimensions))
    if content[:4] != magic:
        raise TrainingError(
            f"{path}: expected the magic number 0x{magic.hex()}, found "
            f"0x{content[:4].hex()}: not this kind of IDX file. {remedy}"
        )
    header = 4 + 4 * dimensions
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    expected = header + torch.Size(shape).numel()
    if len(content) != expected:
        raise TrainingError(
            f"{path}: expected {expected} bytes for the shape {shape} that its header gives, "
            f"found {len(content)}. {remedy}"
        )
    if expected == header:
        raise TrainingError(f"{path}: expected at least one entry, found the shape {shape}. {remedy}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header).view(shape)
