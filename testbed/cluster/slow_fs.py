"""Puts a slow network file system before a directory on all nodes: one server, and a mount of slow_fs.c on each node.

    with mounted(layout, layout.easybuild / "software", cache="nfs") as server:
        ...  # srun
        print(server.counts())
"""

import contextlib
import fcntl
import mmap
import os
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from testbed.cluster import slurm
from testbed.layout import NODES, TestbedError
from testbed.packages import find_command, find_optional
from testbed.progress import run

DEVICE = Path("/dev/fuse")
PACKAGES = ("g++", "libfuse3-dev")
SOURCE = Path(__file__).with_name("slow_fs.c")
#: Debian's libfuse3-dev without pkg-config (fuse3.pc).
COMPILER_OPTIONS = ("-O2", "-Wall", "-Wextra", "-Werror", "-I/usr/include/fuse3", "-D_FILE_OFFSET_BITS=64", "-pthread")
#: 64 ranks that each make 15,700 calls for `import torch` then take 50 s, as OLCF measured on Frontier's Lustre
#: (https://docs.olcf.ornl.gov/software/python/sbcast_conda.html: 51 s for 64 ranks on 8 nodes).
CALLS_PER_SECOND = 20_000
#: A file is on one storage target by default. LUMI-P: 240 GB/s from 32 targets, with one metadata server
#: (https://docs.lumi-supercomputer.eu/storage/parallel-filesystems/lumip/).
BYTES_PER_SECOND = 7_500_000_000
#: For how many seconds a node's kernel answers without the server.
CACHES = {
    # nfs(5): acregmin=3, acdirmin=30, acregmax=60 and acdirmax=60: twice as long each time that attributes have not
    # changed. lookupcache=all keeps names, also missing ones, as long as the attributes of their directory, here the
    # shortest time; each open asks the server ("close-to-open").
    "nfs": {
        "file-attributes": 3, "directory-attributes": 30, "most-attributes": 60, "directory-names": 30, "names": 30,
    },
    # nfs(5): noac and lookupcache=none, but the names of directories within a path stay as above, so that a call that
    # names a file costs one call and not one for each part of its path. The attributes of a file serve the stat that
    # looked it up.
    "none": {
        "file-attributes": 0.1, "directory-attributes": 0, "most-attributes": 0, "directory-names": 30, "names": 0,
    },
}  # fmt: skip
START_SECONDS = 60
#: `struct server` in slow_fs.c: two times, then the calls and bytes.
SERVER = struct.Struct("4q")
#: ioctl_ns(2): the user namespace that owns a namespace.
NS_GET_USERNS = 0xB701


class Counts(NamedTuple):
    """What a server has served: metadata calls, and bytes of reads."""

    calls: int
    bytes: int


class Server:
    """The server of one or more mounts, in a file that they share."""

    def __init__(self, file):
        self.file = file
        self.file.write_bytes(bytes(SERVER.size))
        with self.file.open("r+b") as opened:
            self.memory = mmap.mmap(opened.fileno(), SERVER.size)

    def counts(self):
        """What it has served so far."""
        return Counts(*SERVER.unpack(self.memory)[2:])


def obstacle():
    """Why no slow file system can be mounted on this machine, or None."""
    missing = [package for package in PACKAGES if not find_optional(package)]
    if missing:
        return f"the package {' and '.join(missing)} is missing (`python3 testbed optional` installs it)"
    try:
        os.close(os.open(DEVICE, os.O_RDWR))
    except OSError as error:
        return f"{DEVICE} cannot be opened ({error.strerror}), which FUSE needs"
    return None


@contextlib.contextmanager
def mounted(layout, directory, *, record=None, **options):
    """Mount `directory` over itself, slow and read-only, on all nodes during the block; yield their Server.

    `options` are those of `mount`; `record` is a directory, in which each node writes its calls to a file with its
    name. The cluster must be up. Raises TestbedError.
    """
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slow-fs-", dir=layout.temporary)))
        program, server = build(scratch), Server(scratch / "server")
        for node in NODES:
            file = record and record / node
            stack.enter_context(mount(program, server, directory, pid=node_pid(layout, node), record=file, **options))
        yield server


def build(directory):
    """Compile slow_fs.c into `directory`; return the program. Raises TestbedError."""
    reason = obstacle()
    if reason:
        raise TestbedError(f"No slow file system: {reason}.")
    program = directory / "slow_fs"
    run([find_command("g++").replace("g++", "gcc"), *COMPILER_OPTIONS, "-o", program, SOURCE, "-lfuse3"])
    return program


def node_pid(layout, node):
    """The process id of a node's slurmd. Raises TestbedError if the node is down."""
    for pid in slurm.running(layout, daemons=("slurmd",)):
        with contextlib.suppress(OSError):  # it has ended
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if node in words and "-N" in words:
                return pid
    raise TestbedError(f"No slurmd runs for {node}. Start the cluster: `python3 testbed up`.")


@contextlib.contextmanager
def mount(program, server, directory, *, pid, cache, calls_per_second=CALLS_PER_SECOND,
          bytes_per_second=BYTES_PER_SECOND, record=None):  # fmt: skip
    """Mount `directory` over itself in the mount namespace of the process `pid` during the block.

    `cache` is a key of `CACHES`. Raises TestbedError.
    """
    settings = {
        "source": directory,
        "server": server.file,
        "calls-per-second": calls_per_second,
        "bytes-per-second": bytes_per_second,
        **CACHES[cache],
        **({"record": record} if record else {}),
    }
    command = [program, *(f"--{name}={value}" for name, value in settings.items()), directory]
    with contextlib.ExitStack() as stack:
        process = start_in_namespace(pid, command)
        stack.callback(end, process)
        deadline = time.monotonic() + START_SECONDS
        while not is_mounted(pid, directory):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                lines = process.stderr.read().strip().splitlines() or ["no message"]
                raise TestbedError(f"The slow file system could not be mounted on {directory}: {lines[-1]}")
            time.sleep(0.01)
        yield
    if is_mounted(pid, directory):
        raise TestbedError(f"The slow file system is still mounted on {directory}. Restart: `python3 testbed stop`.")


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
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            pass_fds=(mounts, owner), start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(mounts)
        os.close(owner)


def end(process):
    """End a mount's process; it unmounts."""
    process.terminate()
    try:
        process.wait(timeout=START_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stderr.close()


def is_mounted(pid, directory):
    """Whether the slow file system is mounted on a directory in the mount namespace of a process."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
        return any(f" {directory} " in line and " fuse.slow_fs " in line for line in lines)
    return False
