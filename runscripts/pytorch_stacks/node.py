# SPDX-License-Identifier: BSD-3-Clause
"""Finds the ranks of a job on this node by the variables with which they started, and reads their stacks with py-spy.

py-spy runs on the host. A process of the job's user may trace a container from outside, as its user owns the
container's user namespace (user_namespaces(7)), but not from within another container. py-spy's program is linked
statically, so one that only an image has runs on the host as well.
"""

import json
import os
import re
import shutil
import subprocess
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pytorch_launch import LaunchError, read
from pytorch_launch import process as read_process
from pytorch_launch.launchers import is_of_mpi, node_name
from pytorch_launch.launchers.allocation import job_of_rank
from pytorch_launch.world import LAUNCH_ID

from pytorch_stacks import Rank, Thread

#: py-spy processes at a time; of the processes that a rank started, so many are read.
WORKERS = 8
CHILDREN = 16
#: What torchrun has by default in place of a name, and what `torchrun-distributed` gives it without one.
NO_NAMES = ("", "none", "local")
INSTALL = "install it with the module's pip (`pip install py-spy`, with a venv module `pip install --user py-spy`)"
#: The kernel's setting of who may trace (docs/hangs.md).
SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
ALLOW = (
    "run pytorch-stacks as the job's user, on the host instead of in an image, and start ranks with "
    "conda-python-distributed and without PYTORCH_LAUNCH_TRACEABLE=0"
)

#: Which ranks to find: of a user on a node, and of a job and step if these are not None.
Selection = namedtuple("Selection", "uid node job step")

#: A Python of a rank; `rank` is its launch and number.
Process = namedtuple("Process", "pid parent started env rank")


def read_node(selection, seconds, root=""):
    """The Ranks on this node that `selection` means; `seconds` is the time for the stack of one."""

    def describe(found):
        return read_rank(*found, selection.node, seconds)

    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(describe, find_ranks(selection, root)))


def read_rank(process, children, node, seconds):
    """The Rank that is a Process; the main threads of its children, such as workers of a DataLoader, are among its."""
    threads, fault = [], None
    try:
        threads = read_stacks(process.pid, process.env, seconds)
        threads += read_children(children[:CHILDREN], process.env, seconds)
    except LaunchError as error:
        fault = str(error)
    launch = launch_of(process.env)
    if launch.startswith(("127.", "localhost:")):  # another world on each node
        launch = f"{launch} on {node}"
    return Rank(
        rank=int(process.env["RANK"]),
        size=int(process.env["WORLD_SIZE"]),
        launch=launch,
        step=job_of_rank(process.env).step,
        node=node,
        pid=process.pid,
        threads=threads,
        fault=fault,
    )


def read_children(children, env, seconds):
    threads = []
    for child in children:
        try:
            found = read_stacks(child, env, seconds)
        except LaunchError:  # the permission to trace is not inherited
            continue
        threads += [Thread(f"of process {child}", thread.frames) for thread in found[:1]]
    return threads


def find_ranks(selection, root=""):
    """Pairs of a rank's Process, and the numbers of the Pythons that it has started."""
    processes = {}
    for place in Path(f"{root}/proc").iterdir():
        process = read_python(place, selection.uid) if place.name.isdecimal() else None
        if process and is_selected(process.env, selection):
            processes[process.pid] = process
    ranks, children = {}, {}
    for process in sorted(processes.values(), key=lambda process: process.started):
        parent = processes.get(process.parent)
        if parent is not None and parent.rank == process.rank:  # it inherited the variables
            children.setdefault(process.parent, []).append(process.pid)
        else:
            ranks.setdefault(process.rank, process)  # a second program of the same task started later
    return [(process, children.get(process.pid, [])) for _, process in sorted(ranks.items())]


def read_python(place, uid):
    """The Process with this directory in /proc if it is a Python of user `uid` and a rank, else None."""
    try:
        if place.stat().st_uid != uid:
            return None
        entries = (place / "environ").read_bytes().decode(errors="surrogateescape").split("\0")
        env = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        is_rank = env.get("RANK", "").isdecimal() and env.get("WORLD_SIZE", "").isdecimal()
        if not is_rank or not is_python(place):
            return None
        # in proc_pid_stat(5), the name in brackets before may have blanks
        fields = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:  # it has ended, or may not be read
        return None
    return Process(int(place.name), int(fields[1]), int(fields[19]), env, (launch_of(env), int(env["RANK"])))


def is_python(place):
    program = os.readlink(str(place / "exe")).rpartition("/")[2]
    has_name = re.match(r"(python|pypy)[\d.]*[a-z]*( \(deleted\))?$", program)
    return has_name or "/libpython" in (place / "maps").read_text(errors="replace")


def is_selected(env, selection):
    rank = job_of_rank(env)
    # several nodes of a testbed share one host; MPI's ranks may have the node of their mpirun
    is_here = rank.node in (None, selection.node) or is_of_mpi(env)
    return is_here and selection.job in (None, rank.job) and selection.step in (None, rank.step)


def launch_of(env):
    """A text that all ranks of a launch share."""
    for name in ("TORCHELASTIC_RUN_ID", LAUNCH_ID):
        if env.get(name, "") not in NO_NAMES:
            return env[name]
    return f"{env.get('MASTER_ADDR', '?')}:{env.get('MASTER_PORT', '?')}"


def read_stacks(pid, env, seconds):
    """The Threads of process `pid`, which started with variables `env`, the main thread first. Raises LaunchError."""
    done = run_py_spy(pid, env, seconds)
    errors = done.stderr.decode(errors="replace")
    if done.returncode and ("ermission" in errors or "not permitted" in errors):
        raise LaunchError(f"no permission to trace it (kernel.yama.ptrace_scope={read(SCOPE) or 0})", ALLOW)
    if done.returncode:
        raise LaunchError(f"py-spy: {' '.join(errors.split())[:300] or f'exit status {done.returncode}'}")
    threads = []
    found = json.loads(done.stdout.decode(errors="replace"))
    for thread in sorted(found, key=lambda thread: thread.get("os_thread_id") != pid):
        frames = [[frame["name"], frame["filename"], frame["line"]] for frame in thread["frames"]]
        threads.append(Thread(thread.get("thread_name") or f"thread {thread.get('os_thread_id')}", frames))
    return threads


def run_py_spy(pid, env, seconds):
    """The completed process of py-spy for process `pid`. Raises LaunchError."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    fault = "py-spy not found on the PATH of the rank or of its node"
    for program in find_py_spies(pid, env):
        try:
            command = [program, "dump", "--json", "--pid", str(pid)]
            return subprocess.run(command, timeout=seconds, check=False, **pipes)
        except OSError as error:  # that of an image may not start here
            fault = f"py-spy cannot be started: {program}: {error.strerror}"
        except subprocess.TimeoutExpired:
            if read_process(pid).state == "D":
                remedy = "ask the site to check the node"
                raise LaunchError("it waits in the kernel for a device or a file system", remedy) from None
            raise LaunchError(f"no stack within {seconds} s: try again with a larger --timeout") from None
    raise LaunchError(fault, INSTALL)


def find_py_spies(pid, env):
    """The paths of py-spy in the directories of PATH as the rank sees them, then in those of this process."""
    places = [f"/proc/{pid}/root{place}" for place in env.get("PATH", "").split(":") if place.startswith("/")]
    places += [place for place in os.environ.get("PATH", "").split(":") if place]
    found = [shutil.which("py-spy", path=place) for place in places]
    return [program for program in found if program]


def this_node(host, uid, job=None, step=None):
    """The Selection of the ranks of user `uid` here; `host` is the name of this host."""
    return Selection(uid, node_name(os.environ, host), job, step)
