# SPDX-License-Identifier: BSD-3-Clause
"""Writes files completely or not at all, and names what a user can do when that fails."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training import TrainingError

INCOMPLETE = f".*.{8 * '[0-9a-f]'}.incomplete"  # what write_file calls a file until it is complete


@contextmanager
def writing(path: Path, option: str = "--modelpath") -> Iterator[None]:
    """Raise TrainingError, with what a user can do, if the ``with`` block cannot write ``path``."""
    try:
        yield
    except OSError as error:
        raise TrainingError(
            f"{path}: cannot be written ({error.strerror}). The files before it are undamaged: free some space, or "
            f"choose another directory with {option}; in a container, one that is bound"
        ) from error


def temporary_name(path: Path) -> Path:
    """Return the name of a file, or of a directory, until it is complete."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.incomplete")


def write_file(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``; readers see the old file or the new one, never a part.

    A symbolic link is replaced, not followed. On a failure the old file stays, the temporary file is
    deleted, and OSError is raised.
    """
    temporary = temporary_name(path)
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
