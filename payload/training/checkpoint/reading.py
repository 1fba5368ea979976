"""Reads a checkpoint, and explains to users why one cannot be read."""

from __future__ import annotations

from pathlib import Path

from training import TrainingError
from training.checkpoint.archive import RefusedError, unpack
from training.files import read_file


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
