# SPDX-License-Identifier: BSD-3-Clause
"""Reads files within bounds, and writes files completely or not at all."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from pathlib import Path

from training import TrainingError

TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}")  # what write_file calls a file until it is complete


def read_file(path: Path, most_bytes: int | None = None, *, follow_links: bool = True) -> bytes:
    """Return the content of a regular file; a FIFO or a device cannot block the call.

    Raises OSError if it cannot be read, TrainingError if it is not a regular file or has more than
    ``most_bytes``. If not ``follow_links``, a symbolic link also raises TrainingError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW))
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise TrainingError(f"{path}: a symbolic link, which is not followed. Remove it") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise TrainingError(f"{path}: {kind_of(path)}, not a regular file. Remove it or choose another directory")
    with open(descriptor, "rb") as file:  # noqa: PTH123 (a descriptor)
        if most_bytes is None:
            return file.read()
        content = file.read(most_bytes + 1) if status.st_size <= most_bytes else None
        if content is None or len(content) > most_bytes:
            raise TrainingError(
                f"{path}: {status.st_size} bytes, expected at most {most_bytes}. Remove it or choose another directory"
            )
        return content


def kind_of(path: Path) -> str:
    """Return what ``path`` is, for a message; raises OSError if it cannot be looked at."""
    mode = path.lstat().st_mode
    kinds = ((stat.S_ISLNK, "a link"), (stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a FIFO"))
    devices = ((stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"), (stat.S_ISSOCK, "a socket"))
    return next((name for test, name in (*kinds, *devices) if test(mode)), "a file")


def remedy_for(error: OSError, option: str = "--modelpath") -> str:
    """Return what a user can do about a file that could not be written."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return f"Its directory was removed during the run: start again, with a directory that stays ({option})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"The files before it are undamaged: free some space and start again, or use another {option}"
    return f"The files before it are undamaged: check the directory, or choose another one with {option}"


def write_file(path: Path, content: bytes | memoryview) -> None:
    """Write ``content`` to ``path``; readers see the old file or the new one, never a part.

    A symbolic link is replaced, not followed. On a failure the old file stays, the temporary file is
    deleted, and OSError is raised.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Write the entries of ``directory`` to the disk, so that a new file survives a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system does not support it: fsync(2)
            raise
    finally:
        os.close(descriptor)
