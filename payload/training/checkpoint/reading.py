# SPDX-License-Identifier: BSD-3-Clause
"""Reads a checkpoint without trust: checks its bytes, runs no code in it, and explains why it cannot be read."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import zipfile
from pathlib import Path

import torch

from training import TrainingError
from training.files import read_file

# Names that the pickle of tensors, numbers, strings, lists and dicts may refer to: torch/_utils.py, torch/storage.py.
GLOBALS = re.compile(
    r"torch \w+Storage|torch\.storage UntypedStorage|torch (b?float|u?int|complex|bool)\w*|"
    r"torch\._utils _rebuild_(tensor_v[23]|parameter)|collections (OrderedDict|Counter)"
)
MOST_OPCODES = 5_000_000  # in the pickle of a checkpoint: a tensor has about 25, so 200,000 tensors
DATA_ALONE = "it holds more than tensors, numbers, strings, lists and dicts"


class DamagedError(Exception):
    """The bytes of a file differ from what was written; the text describes how."""


class RefusedError(Exception):
    """A file is undamaged, but torch.save does not write it for data alone; the text is the reason."""


def unpack(content: bytes) -> dict:
    """Return the state that ``content`` holds, a dictionary, as ``unpack_object`` does."""
    state = unpack_object(content)
    if not isinstance(state, dict):
        raise DamagedError("not a checkpoint")
    return state


def unpack_object(content: bytes):
    """Return the tensor or the dictionary that ``content`` holds, on the CPU; run no code in it.

    Raises DamagedError if a byte differs from what was written, RefusedError if it holds more than tensors,
    numbers, strings, lists and dicts, MemoryError if it does not fit into memory.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            check_archive(archive, content)
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (DamagedError, RefusedError, MemoryError):
        raise
    except pickle.UnpicklingError as error:
        raise RefusedError(DATA_ALONE) from error
    except Exception as error:  # for damaged files zipfile and torch raise a dozen types
        # torch's allocator raises RuntimeError: c10/core/impl/alloc_cpu.cpp
        if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):
            raise MemoryError(str(error)) from error
        raise DamagedError(str(error).splitlines()[0] if str(error) else type(error).__name__) from error


def check_archive(archive: zipfile.ZipFile, content: bytes) -> None:
    """Check the parts of a checkpoint, whose bytes are ``content``, before torch reads them.

    Raises DamagedError for what torch.save never writes: wrong checksums, compressed parts. Raises
    RefusedError if the pickle refers to more than data.
    """
    # This name marks TorchScript, which is a program: torch before 2.6 loads it even with weights_only
    # (CVE-2025-32434). Names in an archive are never compressed.
    if b"constants.pkl" in content:
        raise RefusedError(DATA_ALONE)
    parts = archive.infolist()
    if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
        raise DamagedError("its parts are compressed")
    if sum(part.file_size for part in parts) > len(content):
        raise DamagedError("its parts are larger than the file")
    damaged = archive.testzip()  # torch.load does not verify the checksums
    if damaged:
        raise DamagedError(f"wrong checksum of {damaged}")
    pickled = [part for part in parts if part.filename.endswith("/data.pkl")]
    if len(pickled) != 1:
        raise DamagedError("not written by torch.save")
    for count, (opcode, argument, _) in enumerate(pickletools.genops(archive.read(pickled[0]))):
        if count > MOST_OPCODES:
            raise RefusedError(f"it holds more than {MOST_OPCODES} values")
        if opcode.name in ("INST", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4") or (
            opcode.name == "GLOBAL" and not GLOBALS.fullmatch(argument)
        ):
            raise RefusedError(DATA_ALONE)


def read(path: Path, most_bytes: int | None = None) -> dict:
    """Return the state in ``path``, on the CPU, with ``path`` as its "file"; run no code in it.

    Raises DamagedError if a byte differs from what was written, TrainingError if the file holds more
    than tensors, numbers, strings, lists and dicts, has more than ``most_bytes``, or cannot be read.
    """
    try:
        content = read_file(path, most_bytes)
    except OSError as error:  # the file may be undamaged: a disk or a server is out of reach
        raise TrainingError(
            f"{path}: cannot be read ({error.strerror}). Nothing was changed: start again when it can be read"
        ) from error
    try:
        return {**unpack(content), "file": str(path)}
    except RefusedError as fault:
        raise TrainingError(
            f"{path}: refused, and nothing in it was executed: {fault}. Delete it unless you trust its origin"
        ) from None
    except MemoryError as error:
        raise TrainingError(
            f"{path}: not enough memory to read it. Nothing was changed: request more memory"
        ) from error
