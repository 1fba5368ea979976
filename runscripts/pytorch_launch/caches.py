# SPDX-License-Identifier: BSD-3-Clause
"""Private directories: on the node for the caches of compiled kernels, and at home for dumps of PyTorch's recorder.

A user who can write into such a cache can run code as its owner, and a name under `/tmp` can be guessed and created
first by any user: a directory that is not private is not used. Nothing is deleted, as another job may use it.
"""

import posix as os

from pytorch_launch import Problem, exists, names, read
from pytorch_launch.active import bind_line, in_container
from pytorch_launch.launchers import launch_name

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
FULL = (28, 122)  # ENOSPC and EDQUOT; `errno` would be one more module
ANOTHER = "export another TMPDIR"
#: Age of a lock that no compilation holds any more.
OLD_LOCK_SECONDS = 1800

#: Settings of PyTorch's flight recorder. torch before 2.8 has those of the second names (pull request 152563), of which
#: later versions warn on every rank. The size is PyTorch's recommendation ("Flight Recorder for Debugging Stuck Jobs").
#: Without a file all jobs of a user write to the same.
FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
RECORDER = {("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"): "2000", ("TORCH_NCCL_DUMP_ON_TIMEOUT",) * 2: "1"}


def choose_caches(env, uid, key, default="/tmp"):  # noqa: S108  (what it warns of is what this module prevents)
    """The directory for caches below `TMPDIR`, else `default`; the variables that lead there; Problems.

    `key` is a name for job and node. What the user has placed is left out, not what another launch has, whose rank
    submitted this job: on this node its names may be anyone's. If neither is suitable, the directory is None: training
    continues with torch's defaults. Nothing is written.
    """
    warnings = []
    unset = [
        name
        for name, last in SUBDIRECTORIES.items()
        if not env.get(name) or (f"/pytorch-{uid}" in env[name] and env[name].endswith(f"/{last}"))
    ]
    for base in filter(None, (env.get("TMPDIR"), default) if unset else ()):
        fault = unsuitable(base, uid)
        if fault is None:
            directory = f"{base.rstrip('/')}/pytorch-{uid}/{key}"
            return directory, {name: f"{directory}/{SUBDIRECTORIES[name]}" for name in unset}, warnings
        is_hidden = in_container(env) and base.startswith("/") and not exists(base)
        remedy = bind_line(env, base) if is_hidden else ANOTHER
        warnings.append(Problem(f"cannot use {base} for caches: {fault}", remedy))
    return None, {name: None for name in unset if env.get(name)}, warnings


def make_caches(directory, variables):
    """Make the directories that `choose_caches` returned, safely for several ranks at once; the same of what is used.

    That may be a directory with an unpredictable name, or none.
    """
    top, _, key = (directory or "").rpartition("/")
    fault = _make(top, directory, *variables.values()) if variables else None
    if fault is None:
        return directory, variables, []
    from tempfile import mkdtemp

    try:
        used = mkdtemp(prefix=f"{top}-")
    except OSError:
        used = ""
    variables = {name: path.replace(top, used, 1) for name, path in variables.items()}
    if not used or _make(f"{used}/{key}", *variables.values()):
        return None, {}, [Problem(f"cannot use {directory} for caches: {fault}", ANOTHER)]
    return f"{used}/{key}", variables, [Problem(f"{fault}: using {used} for caches")]


def _make(*paths):
    """Make what is missing; return why one of them is not private or cannot be made, or None.

    Once the first is private, no other user can replace what is below it, nor the directory itself (`unsuitable`).
    """
    for path in paths:
        try:
            os.mkdir(path, 0o700)
            fault = None
        except FileExistsError:
            fault = _not_private(path)
        except OSError as error:
            fault = f"{path}: {error.strerror}"
        if fault:
            return fault
    return None


def _not_private(path):
    """Why a path is no directory of this user alone, None if it is."""
    try:
        found = os.lstat(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    if found.st_mode & 0o170000 != 0o040000:  # inode(7)
        return f"{path} is not a directory"
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        return f"{path} belongs to user {found.st_uid} or is open to others, mode {found.st_mode & 0o7777:04o}"
    return None


def unsuitable(path, uid):
    """Why private directories are not safe in `path`, None if they are.

    The group of a directory is trusted, since the user chose it; other users are not. They can replace entries of
    world-writable directories that they own or that have no sticky bit, and else make entries, whose owners are
    checked: elsewhere, in a container without root's number, all others have the same owner (user_namespaces(7)).
    """
    if not path.startswith("/"):
        return "not an absolute path"
    part, public = "", 0
    try:
        for name in filter(None, path.split("/")):
            part = f"{part}/{name}"
            if public and os.lstat(part).st_uid not in (0, uid):
                return f"{part} belongs to another user, who can replace it"
            found = os.stat(part)
            public = found.st_mode & 0o002
            if public and not found.st_mode & 0o1000:
                return f"every user can replace what is in {part}, as it has no sticky bit"
            # 65534 is any user without a number in this user namespace, such as root
            if public and found.st_uid not in (0, uid) and not (found.st_uid == 65534 and in_namespace()):
                return f"{part} belongs to user {found.st_uid}, who can replace what is in it"
        os.stat(f"{path}/.")
    except OSError as error:
        return error.strerror
    return None if os.access(path, 0o3) else "not writable"


def in_namespace():
    """Whether this process is in a user namespace, where numbers of users differ."""
    return (read("/proc/self/uid_map") or "").split() != ["0", "0", "4294967295"]


def old_locks(env):
    """Problems: the locks in torch's directory of extensions that are older than a compilation takes; none is removed.

    torch creates an empty file and waits as long as it exists: only its age tells that a killed process left it
    (https://github.com/pytorch/pytorch/issues/189245).
    """
    problems, directory = [], env.get("TORCH_EXTENSIONS_DIR", "")
    for lock in (f"{directory}/{name}/lock" for name in sorted(names(directory))):
        from time import time

        try:
            age = time() - os.stat(lock).st_mtime
        except OSError:  # none, or it has just been removed
            continue
        if age > OLD_LOCK_SECONDS:
            fault = f"{lock}: an old lock ({age // 60:.0f} minutes): what loads this extension may wait for ever"
            problems.append(Problem(fault, f"if no job compiles it now: rm {lock}"))
    return problems


def plan_dumps(plan):
    """The Plan `plan` with the settings of the flight recorder, which NCCL and RCCL have. Nothing is written.

    What is exported under either name takes precedence, but the file of a launch whose rank submitted this job. All
    dumps are in one directory, with the launch in their names.
    """
    if plan.world.size == 1 or plan.devices.vendor not in ("nvidia", "amd"):
        return plan
    cache = plan.env.get("XDG_CACHE_HOME") or (f"{plan.env['HOME']}/.cache" if plan.env.get("HOME") else "")
    dumps, settings = f"{cache}/pytorch-dumps", dict(RECORDER)
    env = {name: value for name, value in plan.env.items() if name not in FILE or not value.startswith(f"{dumps}/")}
    if cache.startswith("/") and not any(map(env.get, FILE)):
        settings[FILE] = f"{dumps}/{launch_name(env, plan.world, plan.launch, plan.place)}-rank_"
    numbers = env.get("EBVERSIONPYTORCH", "").split(".")[:2]  # of the module's torch
    is_old = len(numbers) == 2 and all(map(str.isdecimal, numbers)) and [*map(int, numbers)] < [2, 8]
    more = {names[is_old]: value for names, value in settings.items() if not any(map(env.get, names))}
    return plan.replace(changes={**plan.changes, **more}, dumps=dumps if FILE in settings else None)


def make_dumps(plan):
    """The Plan, without the setting if the directory of dumps cannot be made or is not private."""
    cache = plan.dumps.rpartition("/")[0]
    fault = (None if exists(cache) else _make(cache)) or (_not_private if exists(plan.dumps) else _make)(plan.dumps)
    if fault is None:
        return plan
    if any(os.strerror(number) in fault for number in FULL):
        problem = Problem(f"no dumps of a collective that hangs: {fault}", f"free space, or export {FILE[0]}")
        plan = plan.replace(warnings=[*plan.warnings, problem])
    return plan.replace(changes={name: value for name, value in plan.changes.items() if name not in FILE})
