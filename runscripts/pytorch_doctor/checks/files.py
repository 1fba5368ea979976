# SPDX-License-Identifier: BSD-3-Clause
"""Checks the directories that a training writes to: caches on the node, the home directory."""

import errno
import os
import pwd
import tempfile
from pathlib import Path

from pytorch_launch import caches

from pytorch_doctor import fail, ok, warn
from pytorch_doctor.context import UNKNOWN_USER

SCARCE = 1000000000  # bytes: torch.compile of a large model can fill that
PIECE = b"\1" * (1 << 20)
ANOTHER = "export TMPDIR=<a directory of yours on the node>, or free space in this one"
MAKE_ROOM = "delete files that you do not need (du -xh --max-depth=2 ~ | sort -h | tail), or ask for a larger quota"


def check_caches(here):
    """Whether there can be a directory on the node for the caches of a launch, with enough space, and no old lock."""
    default = here.root + "/tmp"  # noqa: S108 (the launch checks the owner of directories in it)
    directory, _, problems = caches.choose_caches(here.env, os.geteuid(), "doctor", default=default)
    faults = "; ".join(problem.fault for problem in problems)
    for lock in caches.old_locks(here.env):
        return warn(lock.fault, lock.remedy)
    if directory is None:
        return fail(faults, ANOTHER) if faults else ok("all of them are where you placed them")
    top = Path(directory).parent
    space = full(top.parent, ANOTHER, unwritable=fail)
    return space or (warn(faults, ANOTHER) if faults else ok(f"{top}"))


def check_home(here):
    """Whether the home directory is writable, as pip and many programs need it, and the node knows its user."""
    home = Path(here.env.get("HOME") or "/nonexistent")
    if not home.is_dir():
        return warn(f"no such directory: HOME={home}", "export HOME=<a directory of yours>")
    found = full(home, MAKE_ROOM, unwritable=warn)  # training works with a read-only home directory
    if found:
        return found
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        if not here.in_image:
            return warn(f"this node does not know user {os.geteuid()}", UNKNOWN_USER)
    return ok(f"{home} is writable")


def full(directory, remedy, *, unwritable):
    """The Finding if 1 MiB cannot be written to a new file in `directory`, or little space is left; else None."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(PIECE)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return (fail if is_full else unwritable)(f"{directory}: {error.strerror}", remedy)
    found = os.statvfs(directory)
    space = found.f_bavail * found.f_frsize
    return warn(f"only {space // 1000000} MB free in {directory}", remedy) if space < SCARCE else None
