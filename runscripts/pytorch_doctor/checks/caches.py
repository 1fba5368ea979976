# SPDX-License-Identifier: BSD-3-Clause
"""Checks the private directory on the node for compiled kernels, which a launch makes."""

import os
from pathlib import Path

from pytorch_launch import caches

from pytorch_doctor import fail, ok, warn
from pytorch_doctor.checks.room import SCARCE, free_space, why_not_writable

ANOTHER = "export TMPDIR=<a directory of yours on the node>, or free space in this one"


def check(here):
    """Whether there can be a private directory for the caches, with enough space."""
    uid = os.geteuid()
    default = here.root + "/tmp"  # noqa: S108 (the launch checks the owner of directories in it)
    chosen = caches.choose_caches(here.env, uid, "doctor", default=default)
    faults = "; ".join(problem.fault for problem in chosen.warnings)
    if chosen.directory is None:
        if faults:
            return fail("caches", faults, ANOTHER)
        return ok("caches", "all of them are where you placed them")
    top = Path(chosen.directory).parent
    base = top.parent
    why = why_not_writable(base)
    if why:
        return fail("caches", f"{base}: {why}", ANOTHER)
    if top.is_symlink() or top.exists():
        found = top.lstat()
        if found.st_uid != uid or found.st_mode & 0o077 or top.is_symlink() or not top.is_dir():
            finding = "{} is not private (user {}, mode {:04o}): each job makes another one, and compiles again"
            remedy = "chmod 700 it if it is yours, else ask its owner to remove it, or export another TMPDIR"
            return warn("caches", finding.format(top, found.st_uid, found.st_mode & 0o7777), remedy)
    if faults:
        return warn("caches", faults, ANOTHER)
    space = free_space(base)
    if space < SCARCE:
        return warn("caches", f"only {space // 1000000} MB free in {base}", ANOTHER)
    return ok("caches", f"{top}, {space // 1000000000} GB free")
