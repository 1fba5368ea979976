"""Directories on a node for the staged file: where there is room, a private one, and removing those left behind."""

import fcntl
import os
import shutil
import stat
import time

from pytorch_stage import DIRECTORY, LOCK, PREFIX, StageError

#: Room that stays free.
SPARE = 64 << 20
#: A directory without a lock is one that is being made, for at most this time.
MAKING_SECONDS = 60
#: File systems of one node (proc_pid_mountinfo(5)); on others, all nodes would write to one file.
LOCAL = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}


def candidates(env):
    """Directories to stage in, the first is the best one."""
    if env.get(DIRECTORY):
        return [env[DIRECTORY]]
    found = [env.get("TMPDIR") or "/tmp", "/tmp", "/dev/shm"]  # noqa: S108  (names in them are random)
    return [path for number, path in enumerate(found) if path not in found[:number]]


def rooms(paths, *, is_chosen):
    """The free bytes for this user of each of `paths` that is on this node, writable, and where names are safe.

    A directory that the user chose, `is_chosen`, may be on any file system.
    """
    found, types = {}, file_systems()
    for path in paths:
        try:
            status, space = os.stat(path), os.statvfs(path)
        except OSError:
            continue
        is_public = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
        if not is_chosen and types.get(status.st_dev, "") not in LOCAL:
            continue
        if stat.S_ISDIR(status.st_mode) and os.access(path, os.W_OK | os.X_OK) and not is_public:
            found[path] = space.f_bavail * space.f_frsize - SPARE
    return found


def file_systems():
    """The types of the mounted file systems by their devices."""
    found = {}
    with open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            major, _, minor = before.split()[2].partition(":")
            found[os.makedev(int(major), int(minor))] = after.split()[0]
    return found


def choose(nodes, size, paths):
    """The first of `paths` with room for `size` bytes on all nodes; `nodes`: name to `rooms`. Raises StageError."""
    for path in paths:
        if all(room.get(path, -1) >= size for room in nodes.values()):
            return path
    short = next(name for name, room in nodes.items() if all(room.get(path, -1) < size for path in paths[:1]))
    room = ", ".join(f"{path} {gigabytes(nodes[short].get(path, 0))}" for path in paths)
    raise StageError(f"not enough room on {short} for {gigabytes(size)}: {room}")


def gigabytes(size):
    """A size in bytes as text."""
    return f"{max(size, 0) / 1e9:.2f} GB"


def make(path):
    """Make the private directory `path`, and lock it for this process and its children. Raises OSError."""
    os.mkdir(path, 0o700)
    return hold(path)


def hold(path):
    """Lock a directory; the lock ends with the last process that has the descriptor, which is returned."""
    descriptor = os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def remove_abandoned(path):
    """Remove the directory of a process that was killed, unless another process has made it."""
    try:
        if is_abandoned(path, making_seconds=0):
            remove(path)
    except OSError:
        return


def remove(path):
    """Remove a directory with all that is in it."""
    shutil.rmtree(path, ignore_errors=True)


def sweep(paths):
    """Remove directories of this user whose processes were all killed."""
    for base in paths:
        try:
            names = [name for name in os.listdir(base) if name.startswith(PREFIX)]
        except OSError:
            continue
        for name in names:
            try:
                if is_abandoned(os.path.join(base, name)):
                    remove(os.path.join(base, name))
            except OSError:
                continue


def is_abandoned(path, making_seconds=MAKING_SECONDS):
    """Whether `path` is a directory of this user that no process has locked. Raises OSError."""
    status = os.lstat(path)
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
        return False
    if not os.path.exists(os.path.join(path, LOCK)):
        return time.time() - status.st_mtime > making_seconds
    try:
        os.close(hold(path))
    except BlockingIOError:
        return False
    return True
