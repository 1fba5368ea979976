# SPDX-License-Identifier: BSD-3-Clause
"""The manifest of a sharded checkpoint: what its files hold, in JSON, and their checksums.

torch's own description, ``.metadata``, is a pickle, which can run code: it is written for other programs, and not read.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
import zlib
from pathlib import Path
from typing import NamedTuple

from training import TrainingError
from training.checkpoint import DamagedError
from training.files import read_file

MANIFEST = "manifest.json"
FORMAT = 1
MOST_BYTES = 2**30  # of a manifest: a tensor has about 100 for each rank
BLOCK = 2**22  # bytes that are read at once
SHARD = re.compile(r"__\d{1,9}_\d{1,9}\.distcp")  # torch/distributed/checkpoint/filesystem.py: write_data


class Chunk(NamedTuple):
    """A part of a tensor, and its place in a file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int


class Stored(NamedTuple):
    """A tensor in a checkpoint: its type, such as float32, its shape, and its parts."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


class Manifest(NamedTuple):
    """The content of a checkpoint: tensors, other values, and the size and checksum of each file."""

    tensors: dict[str, Stored]
    values: dict
    files: dict[str, tuple[int, int]]
    size: int  # ranks that wrote it
    torch: str


def encode(manifest: Manifest) -> bytes:
    """Return the bytes of the file, which has a checksum of its own."""
    content = {"format": FORMAT, **manifest._asdict()}
    text = json.dumps(content, separators=(",", ":"))
    return f'{{"sha256":"{digest(text)}","content":{text}}}\n'.encode()


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of the checkpoint ``path``; run no code in it.

    Raises DamagedError if it is missing or changed, TrainingError if it cannot be read.
    """
    try:
        content = read_file(path / MANIFEST, MOST_BYTES, follow_links=False)
    except FileNotFoundError:
        raise DamagedError(f"it has no {MANIFEST}") from None
    except OSError as error:
        raise unreadable(path / MANIFEST, error) from error
    try:
        parts = re.fullmatch(r'\{"sha256":"([0-9a-f]{64})","content":(.*)\}\n', content.decode(), re.DOTALL)
        if not parts or digest(parts[2]) != parts[1]:
            raise DamagedError(f"wrong checksum of {MANIFEST}")
        found = json.loads(parts[2])
        if found["format"] != FORMAT:
            raise TrainingError(f"{path}: written by a newer version. Use the version that wrote it")
        return decode(found)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{MANIFEST} is invalid: {type(error).__name__}") from None


def decode(found: dict) -> Manifest:
    """Return a manifest whose files have the names of shards, and whose parts are within files and tensors."""
    files = {str(name): (size, checksum) for name, (size, checksum) in found["files"].items()}
    for name, numbers in files.items():
        if not SHARD.fullmatch(name):
            raise DamagedError("it names files that are not shards")
        check_numbers(numbers)
    tensors = {
        name: Stored(
            str(dtype),
            check_numbers(shape),
            tuple(
                Chunk(check_numbers(offsets), check_numbers(sizes), file, *check_numbers(place))
                for offsets, sizes, file, *place in chunks
            ),
        )
        for name, (dtype, shape, chunks) in found["tensors"].items()
    }
    for stored in tensors.values():
        check_chunks(stored, files)
    if not isinstance(found["values"], dict):
        raise DamagedError(f"{MANIFEST} is invalid")
    return Manifest(tensors, found["values"], files, *check_numbers([found["size"]]), str(found["torch"]))


def check_numbers(numbers) -> tuple[int, ...]:
    """Return sizes as a tuple; ValueError if one is not a number from 0 to 2^62."""
    if not all(type(number) is int and 0 <= number < 2**62 for number in numbers):
        raise ValueError(numbers)
    return tuple(numbers)


def check_chunks(stored: Stored, files: dict) -> None:
    """Raise ValueError if parts are outside of their tensor or file, or are not the whole tensor."""
    dimensions = len(stored.shape)
    for chunk in stored.chunks:
        if not len(chunk.offsets) == len(chunk.sizes) == dimensions:
            raise ValueError(chunk)
        if any(a + b > whole for a, b, whole in zip(chunk.offsets, chunk.sizes, stored.shape)):
            raise ValueError(chunk)
        if chunk.start + chunk.length > files[chunk.file][0]:
            raise ValueError(chunk)
    if sum(math.prod(chunk.sizes) for chunk in stored.chunks) != math.prod(stored.shape):
        raise ValueError(stored.shape)


def open_shard(path: Path, size: int) -> int:
    """Return a descriptor of a regular file of ``size`` bytes; DamagedError for anything else.

    A FIFO or a device cannot block the call, and a link is not followed.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise DamagedError(f"{path.name} is missing") from None
    except OSError as error:
        raise unreadable(path, error) from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size != size:
        os.close(descriptor)
        raise DamagedError(f"{path.name} has {status.st_size} bytes, expected {size}")
    return descriptor


def verify(path: Path, size: int, checksum: int) -> None:
    """Raise DamagedError if a shard differs from what was written, TrainingError if it cannot be read."""
    descriptor = open_shard(path, size)
    try:
        if checksum_of(descriptor) != checksum:
            raise DamagedError(f"wrong checksum of {path.name}")
    except OSError as error:
        raise unreadable(path, error) from error
    finally:
        os.close(descriptor)


def checksum_of(descriptor: int) -> int:
    """Return the CRC-32 of a file."""
    checksum = 0
    while block := os.read(descriptor, BLOCK):
        checksum = zlib.crc32(block, checksum)
    return checksum


def unreadable(path: Path, error: OSError) -> TrainingError:
    """Return why a file cannot be read; it may be undamaged: a disk or a server is out of reach."""
    return TrainingError(
        f"{path}: cannot be read ({error.strerror}). Nothing was changed: start again when it can be read"
    )
