# SPDX-License-Identifier: BSD-3-Clause
"""What `pytorch-stage` does on a node: make the private directory, copy and check the files, remove the directory.

The order is in JSON in a variable, as other users can read arguments and create the directory first; the answer is a
line of JSON after the directory's name. The order has `steps`, names of functions below, and their values: `base` and
`name` of the directory, whether the user has `chosen` it, the `size` of all files, and their paths with their SHA-256,
`files`.
"""

import hashlib
import json
import os
import shutil
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # `python -I` leaves it out

from pytorch_launch.caches import unsuitable  # noqa: E402  (from the directory above)

#: File systems on a disk of the node (proc_pid_mountinfo(5)). An overlay can be in memory.
ON_DISK = ("btrfs", "ext2", "ext3", "ext4", "f2fs", "xfs", "zfs")
VARIABLE = "PYTORCH_STAGE_ORDER"
#: Room that stays free.
SPARE = 64 << 20
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class NodeError(Exception):
    """Why a step failed, as a sentence without its full stop; `retry` with another "base", or another "name"."""

    def __init__(self, text, retry=""):
        super().__init__(text)
        self.retry = retry


def examine(order):
    """Raise NodeError if the private directory cannot be in the base directory."""
    base, reason = order["base"], unsuitable(order["base"], os.getuid())
    kind = None if reason or order["chosen"] else file_system(base)
    if kind and kind not in ON_DISK:
        reason = f"it is on {kind}, and not on a disk of the node"
    if not reason:
        space, needed = os.statvfs(base), order["size"] + SPARE
        room = space.f_bavail * space.f_frsize
        reason = f"{room / 1e9:.2f} GB free, {needed / 1e9:.2f} GB needed" if room < needed else None
    if reason:
        raise NodeError(f"{base}: {reason}", "base")


def make(order):
    """Make the private directory."""
    try:
        os.mkdir(directory(order), 0o700)
    except FileExistsError as error:
        owner = os.lstat(directory(order)).st_uid
        if owner != os.getuid():
            raise NodeError(f"user {owner} has made {directory(order)} first", "name") from error
        raise NodeError(f"{order['base']} is shared between nodes, or two processes run on this node") from error


def copy(order):
    """Copy the files."""
    for path in order["files"]:
        shutil.copyfile(path, copy_of(path, order))


def check(order):
    """Compare the SHA-256 of the copies."""
    for path, expected in order["files"].items():
        if sha256(copy_of(path, order)) != expected:
            raise NodeError(f"the copy of {path} has another SHA-256")


def hold(order):
    """Wait for a signal, by Slurm at the end of the job at the latest, and remove the directory."""
    signal.sigwait(SIGNALS)
    shutil.rmtree(directory(order), ignore_errors=True)


def directory(order):
    """The path of the private directory."""
    return os.path.join(order["base"], order["name"])


def copy_of(path, order):
    """The path of the copy of a file."""
    return os.path.join(directory(order), os.path.basename(path))


def sha256(path):
    """The SHA-256 of a file, in hexadecimal. Raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(4 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()


def file_system(path):
    """The type of the file system of a directory."""
    path, found = os.path.join(os.path.realpath(path), ""), ("", "")
    with open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            point = os.path.join(before.split()[4].replace("\\040", " "), "")
            if path.startswith(point) and len(point) >= len(found[0]):
                found = (point, after.split()[0])
    return found[1]


def answer(order, *steps):
    """Do steps, and print the answer: why one failed, or nothing. Return whether it is nothing."""
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    result = {
        "problem": "",
        "retry": "",
        "step": os.environ.get("SLURM_STEP_ID"),
        "tasks": os.environ.get("SLURM_STEP_NUM_TASKS"),
    }
    try:
        for step in steps:
            step(order)
    except (NodeError, OSError) as error:
        result.update(problem=f"{node}: {error}", retry=getattr(error, "retry", ""))
    print(order["name"] + json.dumps(result), flush=True)
    return not result["problem"]


def main(order):
    """Do the steps of an order; return the exit status."""
    if order["steps"] != ["hold"]:
        steps = {step.__name__: step for step in (examine, make, copy, check)}
        return 0 if answer(order, *map(steps.get, order["steps"])) else 1
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    if answer(order, examine) and sys.stdin.readline() and answer(order, make):
        hold(order)
    return 0


if __name__ == "__main__":
    if VARIABLE not in os.environ:
        sys.exit(f"{VARIABLE} is not set on {os.uname().nodename}. Pass it on: mpirun -x {VARIABLE}")
    sys.exit(main(json.loads(os.environ[VARIABLE])))
