"""The private directory on the node for compiled kernels, as the launch would make it."""

import os
from pathlib import Path

from pytorch_launch import caches

from pytorch_doctor import fail, ok, warn
from pytorch_doctor.checks.room import SCARCE, free_space, why_not_writable

ANOTHER = "export TMPDIR=<a directory of yours on the node>, or make room in this one"


def check(here):
    """Whether there is a private directory for the caches, with room in it."""
    uid = os.geteuid()
    default = here.root + "/tmp"  # noqa: S108 (the launch looks whose the directories in it are)
    chosen = caches.choose_caches(here.env, uid, "doctor", default=default)
    faults = "; ".join(problem.fault for problem in chosen.warnings)
    if chosen.directory is None:
        if faults:
            return fail("caches", faults, ANOTHER)
        return ok("caches", "all of them where you placed them")
    top = Path(chosen.directory).parent
    base = top.parent
    why = why_not_writable(base)
    if why:
        return fail("caches", f"{base}: {why}", ANOTHER)
    if top.is_symlink() or top.exists():
        found = top.lstat()
        if found.st_uid != uid or found.st_mode & 0o077 or top.is_symlink() or not top.is_dir():
            finding = "{} is not yours alone (user {}, mode {:04o}): each job makes another one, and compiles anew"
            remedy = "chmod 700 it if it is yours, have it removed if not, or export another TMPDIR"
            return warn("caches", finding.format(top, found.st_uid, found.st_mode & 0o7777), remedy)
    if faults:
        return warn("caches", faults, ANOTHER)
    space = free_space(base)
    if space < SCARCE:
        return warn("caches", f"only {space // 1000000} MB are left in {base}", ANOTHER)
    return ok("caches", f"{top}, {space // 1000000000} GB left")
