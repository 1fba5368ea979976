# SPDX-License-Identifier: BSD-3-Clause
"""Chooses and makes private directories on the node for the caches of compiled kernels.

A user who can write into such a cache can run code as its owner, and a name under `/tmp` can be guessed and created
first by any user. So an existing directory is used only if it is private. Nothing is ever deleted: another job of this
user may use it.
"""

import posix as os
import stat

from pytorch_launch import Problem, Value, exists, names, read
from pytorch_launch.container import bind_line, in_container

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


#: Age of a lock that no compilation holds any more.
OLD_LOCK_SECONDS = 1800


class Caches(Value):
    """The directories of the caches that the user has not placed.

    `directory`  the directory of all of them, None if there is none
    `variables`  the variables that lead to them, name to path
    `warnings`   Problems
    """

    __slots__ = ("directory", "variables", "warnings")
    DEFAULTS = {"directory": None, "variables": {}, "warnings": ()}


def choose_caches(env, uid, key, default="/tmp"):  # noqa: S108  (what it warns of is what this module prevents)
    """The Caches below `TMPDIR`, else `default`; nothing is written. `key` is a name for job and node.

    If neither is suitable there are no directories, and warnings why: training continues with torch's defaults.
    """
    names, warnings = [name for name in SUBDIRECTORIES if not env.get(name)], []
    for base in filter(None, (env.get("TMPDIR"), default) if names else ()):
        fault = unsuitable(base, uid)
        if fault is None:
            return _caches_in(f"{base.rstrip('/')}/pytorch-{uid}/{key}", names, warnings)
        is_hidden = in_container(env) and base.startswith("/") and not exists(base)
        remedy = bind_line(env, base) if is_hidden else "export another TMPDIR"
        warnings.append(Problem(f"cannot use {base} for caches: {fault}", remedy))
    return Caches(warnings=warnings)


def make_caches(caches):
    """Make the directories of `caches`, safely for several ranks at once; return the Caches that there are then.

    These may be in a directory with an unpredictable name, or none. The warnings are those of the making.
    """
    if not caches.variables:
        return caches.replace(warnings=[])
    top, _, key = caches.directory.rpartition("/")
    names, warnings = [*caches.variables], []
    try:
        try:
            fault = _make(top, key, names)
        except FileNotFoundError:  # a site's epilog has just removed the empty directory of an ended job
            fault = _make(top, key, names)
        if fault:
            from tempfile import mkdtemp

            top = mkdtemp(prefix=f"{top}-")
            warnings.append(Problem(f"{fault}: using {top} for caches"))
            _make(top, key, names)
    except OSError as error:
        fault = f"cannot use {error.filename} for caches: {error.strerror}"
        return Caches(warnings=[Problem(fault, "export another TMPDIR")])
    return _caches_in(f"{top}/{key}", names, warnings)


def _caches_in(directory, names, warnings):
    variables = {name: f"{directory}/{SUBDIRECTORIES[name]}" for name in names}
    return Caches(directory=directory, variables=variables, warnings=warnings)


def _make(top, key, names):
    """Make what is missing of the directories, each for its owner only; return why one is not private, or None.

    Once `top` is private, no other user can create or replace anything below it, nor `top` itself (checked by
    `unsuitable`). So names are safe from here on, and stay safe for as long as the job uses them, while directory
    descriptors would be closed with this program.
    """
    directory = f"{top}/{key}"
    for path in (top, directory, *(f"{directory}/{SUBDIRECTORIES[name]}" for name in names)):
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            found = os.lstat(path)
            owner = f"belongs to user {found.st_uid}"
            if not stat.S_ISDIR(found.st_mode):
                return f"{path} is not a directory and {owner}"
            if found.st_uid != os.geteuid():
                return f"{path} {owner}"
            if found.st_mode & 0o077:
                return f"{path} {owner} and is open to others, mode {stat.S_IMODE(found.st_mode):04o}"
    return None


def old_locks(env):
    """Problems: the locks in torch's directory of extensions that are older than a compilation takes; none is removed.

    torch creates an empty file and waits as long as it exists: only its age tells that a killed process left it
    (https://github.com/pytorch/pytorch/issues/189245).
    """
    directory = env.get("TORCH_EXTENSIONS_DIR")
    if not directory:
        return []
    import time

    problems = []
    for name in sorted(names(directory)):
        lock = f"{directory}/{name}/lock"
        try:
            age = time.time() - os.stat(lock).st_mtime
        except OSError:
            continue
        if age > OLD_LOCK_SECONDS:
            fault = f"{lock}: an old lock ({age // 60:.0f} minutes): what loads this extension may wait for ever"
            problems.append(Problem(fault, f"if no job compiles it now: rm {lock}"))
    return problems


def unsuitable(path, uid):
    """Why private directories are not safe in `path`, None if they are.

    The group of a directory is trusted, since the user chose it; other users are not. The owner of a
    world-writable directory is trusted only if it is root: an owner can replace its entries in spite of a sticky bit.
    """
    if not path.startswith("/"):
        return "not an absolute path"
    try:
        found = os.stat(path)
        foreign = _foreign_part(path, uid)
    except OSError as error:
        return error.strerror
    mode = found.st_mode
    if not stat.S_ISDIR(mode):
        return "not a directory"
    if not os.access(path, os.W_OK | os.X_OK):
        return "not writable"
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return "every user can replace what is in it, as it has no sticky bit"
    if mode & stat.S_IWOTH and found.st_uid not in (0, uid, _unmapped()):
        return f"it belongs to user {found.st_uid}, who can replace what is in it"
    if foreign is not None:
        return f"{foreign} belongs to another user, who can replace it"
    return None


def _foreign_part(path, uid):
    """The first part of `path` that another user made in a world-writable directory, None if there is none.

    In a container without root's number (user_namespaces(7)), root's directories and those of all others have the
    same owner. So only entries of world-writable directories are checked: other users can make nothing elsewhere.
    """
    part, public = "", False
    for name in path.split("/"):
        if name in ("", "."):
            continue
        part = f"{part}/{name}"
        if public and os.lstat(part).st_uid not in (0, uid):
            return part
        public = os.stat(part).st_mode & stat.S_IWOTH
    return None


def _unmapped():
    """The number of all users that have none in this user namespace, None outside of a user namespace."""
    is_full_map = (read("/proc/self/uid_map") or "").split() == ["0", "0", "4294967295"]
    number = read("/proc/sys/kernel/overflowuid") or ""
    return int(number) if number.isdecimal() and not is_full_map else None
