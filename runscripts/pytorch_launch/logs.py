"""The log of one rank, below the directory that PYTORCH_LAUNCH_LOG_DIR names: <launch>/rank-00005.log.

A log is never overwritten: that of a second start with the same name is rank-00005.1.log.
"""

import stat

from pytorch_launch import LaunchError
from pytorch_launch.caches import unsuitable
from pytorch_launch.launchers.log_names import log_name
from pytorch_launch.system import posix
from pytorch_launch.value import Value

LOG_DIR = "PYTORCH_LAUNCH_LOG_DIR"
LOG = "PYTORCH_LAUNCH_LOG"

#: Python writes at once, so that the log of a rank that is killed has its last lines, in order.
UNBUFFERED = "PYTHONUNBUFFERED"

MOST_STARTS = 1000


class LogError(LaunchError):
    """The log cannot be written; the first rank of the node reports it."""

    def __init__(self, directory, fault, world):
        super().__init__(f"{LOG_DIR}: cannot write to {directory}: {fault}", _remedy(fault))
        self.rank = world.local_rank


class Log(Value):
    """The log of a rank.

    `base`, `directory`  what PYTORCH_LAUNCH_LOG_DIR names, and the directory of the launch in it
    `path`               the file
    `descriptor`         the open file, None before it is opened
    """

    __slots__ = ("base", "descriptor", "directory", "path")
    DEFAULTS = {"descriptor": None}


def plan_log(plan):
    """The Plan `plan` with its Log. Nothing is written."""
    base = plan.env[LOG_DIR].rstrip("/") or "/"
    if not base.startswith("/"):
        try:
            base = f"{posix.getcwd()}/{base}"
        except OSError as error:
            raise LogError(base, error.strerror, plan.world) from error
    directory = f"{base}/{log_name(plan.env, plan.world, plan.launch, plan.place)}"
    return _with_log(plan, Log(base=base, directory=directory, path=f"{directory}/rank-{plan.world.rank:05d}.log"))


def open_log(plan):
    """The Plan `plan` with its Log made and open. Raises LogError."""
    _open_standard_streams()
    log, uid = plan.log, posix.geteuid()
    path = log.base
    try:
        _make(path)
        fault = unsuitable(path, uid)
        if fault is None:
            path = log.directory
            _make(path)
            fault = _not_own(path, uid)
        if fault is not None:
            raise LogError(path, fault, plan.world)
        opened = _create(log)
    except OSError as error:
        raise LogError(path, error.strerror, plan.world) from error
    return _with_log(plan, opened)


def first_failed(log):
    """The name of the link to the log of the first rank that failed, of the starts with the number in this log's."""
    number = log.path[len(f"{log.directory}/rank-") : -len(".log")].partition(".")[2]
    return f"{log.directory}/first-failed{'.' if number else ''}{number}.log"


def _with_log(plan, log):
    changes = {**plan.changes, LOG: log.path}
    if UNBUFFERED not in plan.env:
        changes[UNBUFFERED] = "1"
    return plan.replace(log=log, changes=changes)


def _make(directory):
    """Create `directory` for its owner only, but not its parents: they exist, or a container does not bind them."""
    try:
        posix.mkdir(directory, 0o700)
    except FileExistsError:
        return
    except OSError:
        # where its parent is read-only, a directory may exist all the same
        posix.stat(directory)


def _not_own(directory, uid):
    """Why logs in `directory` are not safe, None if they are."""
    found = posix.lstat(directory)
    if not stat.S_ISDIR(found.st_mode):
        return "not a directory"
    if found.st_uid != uid:
        return f"it belongs to user {found.st_uid}"
    return "other users can write to it" if found.st_mode & 0o022 else None


def _create(log):
    """The Log, open in a file that did not exist. Raises OSError."""
    start = log.path[: -len(".log")]
    for number in range(MOST_STARTS):
        path = f"{start}.{number}.log" if number else log.path
        try:
            flags = posix.O_RDWR | posix.O_CREAT | posix.O_EXCL | posix.O_APPEND
            return log.replace(path=path, descriptor=posix.open(path, flags, 0o600))
        except FileExistsError:
            continue
    raise FileExistsError(17, f"it has {MOST_STARTS} logs of this rank", log.directory)


def _open_standard_streams():
    """Open those of 0, 1 and 2 that are closed, as the log would get their number."""
    for number in range(3):
        try:
            posix.fstat(number)
        except OSError:
            posix.open("/dev/null", posix.O_RDWR)  # takes the lowest number that is free
            posix.set_inheritable(number, True)


def _remedy(fault):
    if fault in ("No such file or directory", "Read-only file system"):
        return "create the directory that contains it; for a container, also bind it"
    return "name a directory of your own, on a file system that all nodes share"
