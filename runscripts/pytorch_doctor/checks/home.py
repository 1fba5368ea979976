# SPDX-License-Identifier: BSD-3-Clause
"""Checks the space and quota of the home directory and of the user's directory for this module."""

import errno
import os
from pathlib import Path

from pytorch_doctor import fail, ok, warn
from pytorch_doctor.checks.room import SCARCE, free_space, why_not_writable

MAKE_ROOM = "delete files that you do not need (du -xh --max-depth=2 ~ | sort -h | tail), or ask for a larger quota"


def check(here):
    """Whether the home directory is writable, as pip and many programs need it."""
    home = Path(here.env.get("HOME") or "/nonexistent")
    if not home.is_dir():
        return warn("home", f"no such directory: HOME={home}", "export HOME=<a directory of yours>")
    packages = Path(here.env.get("PYTHONUSERBASE") or home).absolute()
    # pip makes missing directories
    packages = next(directory for directory in (packages, *packages.parents) if directory.is_dir())
    for directory in dict.fromkeys((home, packages)):
        why = why_not_writable(directory)
        if why:
            # training works with a read-only home directory
            full = why in (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
            give = fail if full else warn
            return give("home", f"{directory}: {why}", MAKE_ROOM if full else "write to another file system")
    space = free_space(home)
    if space < SCARCE:
        return warn("home", f"only {space // 1000000} MB free in {home}", MAKE_ROOM)
    return ok("home", f"{home} is writable, {space // 1000000000} GB free on its file system")
