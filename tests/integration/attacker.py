"""What another user of a node can try against packed venvs; run by test_packed.py, prints what succeeds.

Arguments: the user who has the venv.
"""

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

NAMESPACES = ("ns/user", "ns/mnt")
NEWNS, NEWUSER = 0x00020000, 0x10000000
libc = ctypes.CDLL(None)


def main(victim):
    """Offer a mount, and attack until killed."""
    offer_mount(os.environ["PYTORCH_PACKED"], os.environ["CONTAINERROOT"])
    print("ready", flush=True)
    while True:
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
