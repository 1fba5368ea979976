# SPDX-License-Identifier: BSD-3-Clause
"""Measures the free space of a directory."""

import os
import tempfile

SCARCE = 1000000000  # bytes: torch.compile of a large model can fill that
PIECE = b"\1" * (1 << 20)


def why_not_writable(directory):
    """Why 1 MiB cannot be written to a new file in `directory`, None if it can; the file is deleted."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(PIECE)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror
    return None


def free_space(directory):
    """The bytes that this user may still write on the file system of `directory`."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize
