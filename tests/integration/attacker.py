"""What another user of a node can try against packed venvs; run by test_packed.py, prints what succeeds.

Arguments: the user who has the venv.
"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

#: Mounts something under the name that the venv's mount has, in the attacker's own namespaces.
OFFER = """mount -t tmpfs "$1-$(stat --dereference --format=%i /proc/self/ns/mnt)" "$2"
touch "$2/.packed"
echo ready
exec sleep 600"""


def main(victim):
    """Offer a mount, and attack until killed."""
    root = os.environ["CONTAINERROOT"]
    file = os.environ["PYTORCH_PACKED"]
    sys.path.insert(0, f"{root}/runscripts")
    from pytorch_packed import mount_name

    own = ["unshare", "--user", "--map-root-user", "--mount", "setpriv", "--pdeathsig=KILL"]
    subprocess.Popen([*own, "bash", "-ec", OFFER, "bash", f"{file}@{mount_name(file, root)}", root])
    while True:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if process.stat().st_uid == int(victim):
                    enter(process)


def enter(process):
    """See what a process sees, open its namespaces, or stop it."""
    for part in ("ns/user", "ns/mnt", "environ", "root/", "cwd/"):
        with contextlib.suppress(OSError):
            os.close(os.open(f"{process}/{part}", os.O_RDONLY))
            print("opened", part, "of", process, flush=True)
    os.kill(int(process.name), signal.SIGSTOP)
    print("stopped", process, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
