"""Reads a checkpoint without trust: every byte is checked, and no code in it is run."""

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

# What the pickle of tensors, numbers, strings, lists and dicts refers to: torch/_utils.py, torch/storage.py.
GLOBALS = re.compile(
    r"torch \w+Storage|torch\.storage UntypedStorage|torch (b?float|u?int|complex|bool)\w*|"
    r"torch\._utils _rebuild_(tensor_v[23]|parameter)|collections (OrderedDict|Counter)"
)
MOST_OPCODES = 5_000_000  # of the pickle in a checkpoint: a tensor has about 25, so 200,000 tensors
DATA_ALONE = "it holds more than tensors, numbers, strings, lists and dicts"


class DamagedError(Exception):
    """A file is not what was written; its text says in which way."""


class RefusedError(Exception):
    """A file is whole, but not what torch.save writes of data; its text says why."""


def read(path: Path, most_bytes: int | None = None) -> dict:
    """Return the state in ``path``, on the CPU, and ``path`` as its "file"; run no code that is in it.

    Raises DamagedError where a byte is not as it was written, TrainingError where there is more
    than tensors, numbers, strings, lists and dicts, or more than ``most_bytes``, and where the file
    cannot be read.
    """
    try:
        content = read_file(path, most_bytes)
    except OSError as error:  # which says nothing about the file: a disk or a server is out of reach
        raise TrainingError(
            f"{path}: cannot be read ({error.strerror}); start again when it can be, nothing was changed"
        ) from error
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            check_archive(archive, content)
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (RefusedError, pickle.UnpicklingError) as fault:
        what = fault if isinstance(fault, RefusedError) else DATA_ALONE
        raise TrainingError(
            f"{path}: refused, and nothing in it was run: {what}; delete it unless you trust where it comes from"
        ) from None
    except DamagedError:
        raise
    except (MemoryError, RuntimeError) as error:
        # the second is torch's own allocator, c10/core/impl/alloc_cpu.cpp
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            raise TrainingError(
                f"{path}: there is not enough memory to read it; ask for more, nothing was changed"
            ) from error
        raise DamagedError(str(error).splitlines()[0]) from error
    except Exception as error:  # zipfile and torch have a dozen kinds of them for damaged files
        raise DamagedError(str(error).splitlines()[0] if str(error) else type(error).__name__) from error
    if not isinstance(state, dict):
        raise DamagedError("not a checkpoint")
    return {**state, "file": str(path)}


def check_archive(archive: zipfile.ZipFile, content: bytes) -> None:
    """Look at the parts of a checkpoint, whose bytes are ``content``, before torch does.

    Raises DamagedError for what torch.save does not write: wrong checksums, parts that expand. Raises
    RefusedError where the pickle refers to more than data.
    """
    # The mark of TorchScript, a program: torch before 2.6 loads it even with weights_only
    # (CVE-2025-32434). In an archive names are never compressed.
    if b"constants.pkl" in content:
        raise RefusedError(DATA_ALONE)
    parts = archive.infolist()
    if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
        raise DamagedError("its parts are compressed")
    if sum(part.file_size for part in parts) > len(content):
        raise DamagedError("its parts are larger than the file")
    damaged = archive.testzip()  # the checksums, which torch.load does not look at
    if damaged:
        raise DamagedError(f"wrong checksum of {damaged}")
    pickled = [part for part in parts if part.filename.endswith("/data.pkl")]
    if len(pickled) != 1:
        raise DamagedError("not of torch.save")
    for count, (opcode, argument, _) in enumerate(pickletools.genops(archive.read(pickled[0]))):
        if count > MOST_OPCODES:
            raise RefusedError(f"it holds more than {MOST_OPCODES} values")
        if opcode.name in ("INST", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4") or (
            opcode.name == "GLOBAL" and not GLOBALS.fullmatch(argument)
        ):
            raise RefusedError(DATA_ALONE)
