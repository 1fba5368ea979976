"""Private directories on the node for the caches of compiled kernels; called by `launch`.

Whoever can write into such a cache runs code as its owner, and a name under `/tmp` can be guessed
and taken first by anybody. So a directory is used only if it is ours alone. Nothing is ever
deleted: another job of this user may be at work in there.
"""

import _stat  # the core of `stat`
import posix

from pytorch_launch.topology import read

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


class NotPrivateError(Exception):
    """What stands where a private directory should be; the message says whose it is."""


def place(env, uid, key, create, default="/tmp"):  # noqa: S108  (its objection is what follows)
    """Place the caches that the user has not placed, under `TMPDIR` or else `default`.

    `uid` is the user's number, `key` a directory name for the job and the node. With `create` the
    directories are made, safely for several ranks at once; without, nothing is written.

    Returns the directory of the caches, the variables that lead to them, and a list of warnings.
    Where there is no room they are None, {} and why: that is no reason not to train.
    """
    subdirectories = {name: sub for name, sub in SUBDIRECTORIES.items() if not env.get(name)}
    if not subdirectories:
        return None, {}, []
    base, warnings = _base(env.get("TMPDIR"), default, uid)
    if base is None:
        return None, {}, warnings
    directory = f"{base}/pytorch-{uid}/{key}"
    if create:
        try:
            directory, problems = _create(base, uid, key, subdirectories.values())
        except OSError as error:
            return None, {}, [*warnings, f"no caches in {error.filename}: {error.strerror}"]
        warnings += problems
    return directory, {name: f"{directory}/{sub}" for name, sub in subdirectories.items()}, warnings


def _base(tmpdir, default, uid):
    """The directory to go under, None if neither will do, and a list of warnings."""
    warnings = []
    for path in (tmpdir, default) if tmpdir else (default,):
        problem = _unsuitable(path, uid)
        if problem is None:
            return path.rstrip("/"), warnings
        warnings.append(f"no caches in {path}: {problem} (export another TMPDIR)")
    return None, warnings


def _unsuitable(path, uid):
    """Why private directories cannot go under `path`, None if they can.

    The group of a directory is trusted, since the user chose it; everybody is not. Nor is the owner of a
    directory that everybody uses, unless that is root: an owner can replace what is in it, sticky bit or not.
    """
    if not path.startswith("/"):
        return "not an absolute path"
    try:
        found = posix.stat(path)
        stranger = _stranger(path, uid)
    except OSError as error:
        return error.strerror
    mode = found.st_mode
    if not _stat.S_ISDIR(mode):
        return "not a directory"
    if not posix.access(path, posix.W_OK | posix.X_OK):
        return "not writable"
    if mode & _stat.S_IWOTH and not mode & _stat.S_ISVTX:
        return "everybody can replace what is in it, for want of a sticky bit"
    if mode & _stat.S_IWOTH and found.st_uid not in (0, uid, _unmapped()):
        return f"it belongs to user {found.st_uid}, who can replace what is in it"
    if stranger is not None:
        return f"{stranger} belongs to another user, who can replace it"
    return None


def _stranger(path, uid):
    """The first part of `path` that another user made in a directory for everybody, None if there is none.

    In a container without root's number (user_namespaces(7)), root's directories and those of all others have the
    same owner. There it is a directory for everybody that tells: only in one can another user make something.
    """
    part, public = "", False
    for name in path.split("/"):
        if name in ("", "."):
            continue
        part = f"{part}/{name}"
        if public and posix.lstat(part).st_uid not in (0, uid):
            return part
        public = posix.stat(part).st_mode & _stat.S_IWOTH
    return None


def _unmapped():
    """The number that stands for every user without one in this user namespace, None outside of one."""
    whole = (read("/proc/self/uid_map") or "").split() == ["0", "0", "4294967295"]
    number = read("/proc/sys/kernel/overflowuid") or ""
    return int(number) if number.isdecimal() and not whole else None


def _create(base, uid, key, subdirectories):
    """Create what is missing of the directories, each for its owner only.

    Returns the directory that holds the `subdirectories`, one with a name that nobody could guess
    where the usual one is not private, and a list of warnings. Raises OSError.
    """
    try:
        return _create_tree(f"{base}/pytorch-{uid}", uid, key, subdirectories), []
    except NotPrivateError as problem:
        unguessable = f"{base}/pytorch-{uid}-{posix.urandom(8).hex()}"
        directory = _create_tree(unguessable, uid, key, subdirectories)
        return directory, [f"{problem}: caches go to {unguessable} instead"]


def _create_tree(top, uid, key, subdirectories):
    # Once `top` is known to be private, nobody else can create or replace anything below it, nor
    # `top` itself (`_unsuitable` saw to that). So names are safe from here on, and stay safe for
    # as long as the job uses them, where directory descriptors would end with this program.
    directory = f"{top}/{key}"
    for path in (top, directory, *(f"{directory}/{name}" for name in subdirectories)):
        _make_private(path, uid)
    return directory


def _make_private(path, uid):
    """Create the directory `path`; raise NotPrivateError if what is there is not private."""
    try:
        posix.mkdir(path, 0o700)
    except FileExistsError as error:
        found = posix.lstat(path)
        owner = f"belongs to user {found.st_uid}"
        if not _stat.S_ISDIR(found.st_mode):
            raise NotPrivateError(f"{path} is no directory and {owner}") from error
        if found.st_uid != uid:
            raise NotPrivateError(f"{path} {owner}") from error
        if found.st_mode & 0o077:
            mode = f"{_stat.S_IMODE(found.st_mode):04o}"
            raise NotPrivateError(f"{path} {owner} and is open to others, mode {mode}") from error
