"""Runs commands in the mount namespace of a node of the testbed, for tests that give each node a disk of its own."""

import contextlib
import fcntl
import os
import subprocess
from pathlib import Path

from testbed.cluster import slurm
from testbed.layout import TestbedError
from testbed.packages import find_command

#: ioctl_ns(2): the user namespace that owns a namespace.
NS_GET_USERNS = 0xB701


def node_pid(layout, node):
    """The process id of a node's slurmd. Raises TestbedError if the node is down."""
    for pid in slurm.running(layout, daemons=("slurmd",)):
        with contextlib.suppress(OSError):  # it has ended
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if node in words and "-N" in words:
                return pid
    raise TestbedError(f"No slurmd runs for {node}. Start the cluster: `python3 testbed up`.")


def start_in_namespace(pid, command):
    """Start a command, a list, in the mount namespace of a process, with the rights to mount there."""
    mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    owner = fcntl.ioctl(mounts, NS_GET_USERNS)
    try:
        if os.fstat(mounts).st_ino == Path("/proc/self/ns/mnt").stat().st_ino:
            raise TestbedError("The nodes share the mounts of this machine, as it denies namespaces to ordinary users.")
        entry = [find_command("nsenter"), f"--mount=/proc/self/fd/{mounts}"]
        if os.fstat(owner).st_ino != Path("/proc/self/ns/user").stat().st_ino:
            entry += [f"--user=/proc/self/fd/{owner}", "--preserve-credentials"]
        return subprocess.Popen(
            [*map(str, entry), "--", *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=(mounts, owner),
            start_new_session=True,
        )
    finally:
        os.close(mounts)
        os.close(owner)
