# SPDX-License-Identifier: BSD-3-Clause
"""Makes private directories for the caches of compiled kernels.

A user who can write into such a cache can run code as its owner, and torch's own default is a name under `/tmp` that
any user can create first: it is never used. Nothing is deleted, as another job may use it.
"""

from collections import namedtuple

from pytorch_launch import LaunchError, Problem, exists
from pytorch_launch.container import bind_line, in_container
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
ANOTHER = "export another TMPDIR"
SOME_DIRECTORY = "export TMPDIR=<a directory of yours on this node>"


class Caches(namedtuple("Caches", "directory names bases uid key warnings")):
    """The directory for caches.

    `directory`  that of this job and node, None if the user has placed all caches
    `names`      the variables that lead there
    `bases`      where it can be, in order of preference: first the one of `directory`
    `uid`        number of the user, in its path
    `key`        name for job and node, the last part of its path
    `warnings`   Problems
    """

    __slots__ = ()

    @property
    def variables(self):
        """Name of each variable to its directory."""
        return {name: f"{self.directory}/{SUBDIRECTORIES[name]}" for name in self.names}


def choose_caches(env, uid, key, default="/tmp"):  # noqa: S108  (what it warns of is what this module prevents)
    """The Caches below `TMPDIR`, else `default`, else in the home directory. Nothing is written. Raises LaunchError.

    `key` is a name for job and node. What the user has placed is left out, not what another launch has, whose rank
    submitted this job: on this node its names may be anyone's.
    """
    names = _unplaced(env, uid)
    if not names:
        return Caches(None, names, [], uid, key, [])
    bases = [base for base in (env.get("TMPDIR", "").rstrip("/"), default, _home_cache(env)) if base]
    warnings = []
    while bases:
        fault = unsuitable(bases[0], uid)
        if fault is None:
            return Caches(f"{bases[0]}/pytorch-{uid}/{key}", names, bases, uid, key, warnings)
        warnings.append(_refuse(env, bases.pop(0), fault))
    raise LaunchError("; ".join(warning.fault for warning in warnings), SOME_DIRECTORY)


def _unplaced(env, uid):
    """The variables that the user has not set."""
    found = []
    for name, last in SUBDIRECTORIES.items():
        value = env.get(name, "")
        is_of_a_launch = f"/pytorch-{uid}" in value and value.endswith(f"/{last}")
        if not value or is_of_a_launch:
            found.append(name)
    return found


def _refuse(env, base, fault):
    remedy = ANOTHER
    if in_container(env) and base.startswith("/") and not exists(base):
        remedy = bind_line(env, base)
    return Problem(f"cannot use {base} for caches: {fault}", remedy)


def _home_cache(env):
    """Where programs keep caches in the home directory (XDG Base Directory Specification), "" if it is not known."""
    home = env.get("HOME", "")
    cache = env.get("XDG_CACHE_HOME") or f"{home}/.cache"
    return cache if exists(cache) else home


def make_caches(caches):
    """Make the directories of `caches`, safely for several ranks at once; return the Caches that are used.

    If another user has taken the name, that is a directory with an unpredictable one; if none can be made there, one in
    the next place. Raises LaunchError.
    """
    warnings = list(caches.warnings)
    for base in caches.bases:
        fault = None
        if base != caches.bases[0]:  # which `choose_caches` has examined
            fault = unsuitable(base, caches.uid)
        if fault is None:
            directory, fault = _make(f"{base}/pytorch-{caches.uid}", caches)
            if directory and fault:
                warnings.append(Problem(f"{fault}: using {directory} for caches"))
            if directory:
                return caches._replace(directory=directory, warnings=warnings)
        warnings.append(Problem(f"cannot use {base} for caches: {fault}", ANOTHER))
    if caches.bases:
        raise LaunchError("; ".join(warning.fault for warning in warnings), SOME_DIRECTORY)
    return caches


def _make(top, caches):
    """Make the directories below `top`, else below another name; return the directory or None, and why not `top`."""
    fault = _make_below(top, caches)
    if fault is None:
        return f"{top}/{caches.key}", None
    from tempfile import mkdtemp  # most launches do not need it

    try:
        other = mkdtemp(prefix=f"{top}-")
    except OSError:
        return None, fault
    if _make_below(other, caches):
        return None, fault
    return f"{other}/{caches.key}", fault


def _make_below(top, caches):
    directory = f"{top}/{caches.key}"
    return make_private(top, directory, *(f"{directory}/{SUBDIRECTORIES[name]}" for name in caches.names))
