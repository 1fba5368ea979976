# SPDX-License-Identifier: BSD-3-Clause
"""Makes private directories for the caches of compiled kernels.

A user who can write into such a cache can run code as its owner, and torch's own default is a name under `/tmp` that
any user can create first: it is never used. Nothing is deleted, as another job may use it.
"""

import os

from pytorch_launch import LaunchError, Problem, Record, exists
from pytorch_launch.private import make_private, unsuitable

# Named in: MIOpen, "Using the find APIs and caches"; the READMEs of Triton and ROCm/aiter;
# PyTorch, "Compile Time Caching"; CUDA Programming Guide, "CUDA Environment Variables".
SUBDIRECTORIES = {
    "MIOPEN_USER_DB_PATH": "miopen-db",
    "MIOPEN_CUSTOM_CACHE_DIR": "miopen-kernels",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "cuda",
    "AITER_JIT_DIR": "aiter",
}


class Caches(Record):
    """The directory for caches.

    `directory`  that of this job and node, None if the user has placed all caches
    `names`      the variables that lead there
    `bases`      where it can be, in order of preference: first the one of `directory`
    `key`        its path below these
    `warnings`   Problems
    """

    fields = "directory names bases key warnings"

    @property
    def variables(self):
        """Name of each variable to its directory."""
        return {name: f"{self.directory}/{SUBDIRECTORIES[name]}" for name in self.names}


def choose_caches(env, uid, key, default="/tmp"):  # noqa: S108  (what it warns of is what this module prevents)
    """The Caches below `TMPDIR`, else `default`, else in the home directory. Nothing is written. Raises LaunchError.

    `key` is a name for job and node. What the user has placed is left out, not what another launch has, whose rank
    submitted this job: on this node its names may be anyone's.
    """
    names = [name for name in SUBDIRECTORIES if not env.get(name) or _is_of_launch(env[name], uid, name)]
    bases = [base for base in (env.get("TMPDIR", "").rstrip("/"), default, _home_cache(env)) if base]
    chosen = Caches(None, names, bases, f"pytorch-{uid}/{key}", [])
    if not names:
        return chosen
    return _try(chosen, lambda base, _: unsuitable(base, uid))


def _is_of_launch(path, uid, name):
    return f"/pytorch-{uid}/" in path and path.endswith(f"/{SUBDIRECTORIES[name]}")


def _home_cache(env):
    """Where programs keep caches in the home directory (XDG Base Directory Specification), "" if it is not known."""
    home = env.get("HOME", "")
    cache = env.get("XDG_CACHE_HOME") or f"{home}/.cache"
    return cache if exists(cache) else home


def make_caches(caches):
    """Make the directories of `caches`, safely for several ranks at once; return the Caches that are used.

    If another user has taken the name or the file system is full, that is the next place. Raises LaunchError.
    """
    if caches.directory is None:
        return caches
    return _try(caches._replace(warnings=[]), _make)


def _try(caches, find_fault):
    """The Caches with the first of their bases where nothing is wrong. Raises LaunchError."""
    warnings = list(caches.warnings)
    for number, base in enumerate(caches.bases):
        placed = caches._replace(directory=f"{base}/{caches.key}", bases=caches.bases[number:], warnings=warnings)
        fault = find_fault(base, placed)
        if fault is None:
            return placed
        warnings.append(Problem(f"cannot use {base} for caches: {fault}", "export another TMPDIR"))
    faults = "; ".join(warning.fault for warning in warnings)
    raise LaunchError(faults, "export TMPDIR=<a directory of yours on this node>")


def _make(base, caches):
    """Make the directories; return why that is not possible, or None."""
    fault = unsuitable(base, os.geteuid())
    top = os.path.dirname(caches.directory)
    return fault or make_private(top, caches.directory, *caches.variables.values())
