"""Files that others may have put there: read within bounds, and written whole; called by data, checkpoint, metrics."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

from training import TrainingError


def read_file(path: Path, most_bytes: int | None = None, *, follow_links: bool = True) -> bytes:
    """Return the content of a regular file; a FIFO or a device is never waited for.

    Raises OSError where it cannot be read, TrainingError where it is of another kind or has more than
    ``most_bytes``. If not ``follow_links``, a symbolic link is refused too.
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
        raise TrainingError(f"{path}: not a regular file. Remove it or name another directory")
    with open(descriptor, "rb") as file:  # noqa: PTH123 (a descriptor)
        if most_bytes is None:
            return file.read()
        content = file.read(most_bytes + 1) if status.st_size <= most_bytes else None
        if content is None or len(content) > most_bytes:
            raise TrainingError(
                f"{path}: {status.st_size} bytes, though no more than {most_bytes} are expected. "
                "Remove it or name another directory"
            )
        return content


def write_file(path: Path, content: bytes | memoryview) -> None:
    """Write ``content`` to ``path``; a reader sees the old file or the new one, never a part.

    A symbolic link is replaced, not followed. On a failure the old file stays, nothing else is left
    behind, and OSError is raised.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("x+b") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            # What is read back comes from the disk, not from the host's memory.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            if file.read() != content:
                raise OSError(errno.EIO, "other bytes were read back than were written")
        temporary.replace(path)
        sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Bring the names in ``directory`` to the disk, so that a new one outlives a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # this file system has no such thing: fsync(2)
            raise
    finally:
        os.close(descriptor)
