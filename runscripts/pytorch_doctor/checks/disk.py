# SPDX-License-Identifier: BSD-3-Clause
"""Checks the directories that a training writes to: that of the caches on the node, and the home directory."""

import os
import tempfile

from pytorch_doctor import fail, ok, warn

SCARCE = 1000000000  # bytes: torch.compile of a large model can fill that
PIECE = b"\1" * (1 << 20)
ANOTHER = "export TMPDIR=<a directory of yours on the node>, or free space in this one"
MAKE_ROOM = "delete files that you do not need (du -xh --max-depth=2 ~ | sort -h | tail), or ask for a larger quota"


def check_disk(here):
    """Whether TMPDIR and the home directory can be written to and have space."""
    temporary = here.env.get("TMPDIR") or "/tmp"  # noqa: S108
    home = here.env.get("HOME") or "/nonexistent"
    # training works with a home directory that is read-only
    for directory, remedy, verdict in ((temporary, ANOTHER, fail), (home, MAKE_ROOM, warn)):
        fault = find_fault(directory)
        if fault:
            return verdict(f"{directory}: {fault}", remedy)
        found = os.statvfs(directory)
        space = found.f_bavail * found.f_frsize
        if space < SCARCE:
            return warn(f"only {space // 1000000} MB free in {directory}", remedy)

    return ok(f"{temporary} and {home} are writable")


def find_fault(directory):
    """Why 1 MiB cannot be written to a new file in `directory`, None if it can: also a quota is found."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(PIECE)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror
    return None
