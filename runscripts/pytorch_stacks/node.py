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

#: py-spy processes at a time; of the processes that a rank started, so many are read.
WORKERS, CHILDREN = 8, 16
#: What torchrun has by default in place of a name, and what `torchrun-distributed` gives it without one.
NO_NAMES = ("", "none", "local")
#: Variables of ranks that mpirun started.
OF_MPI = ("OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK")
INSTALL = "install it with the module's pip (`pip install py-spy`, with a venv module `pip install --user py-spy`)"
#: The kernel's setting of who may trace (docs/hangs.md).
SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
ALLOW = (
    "run pytorch-stacks as the job's user, on the host instead of in an image, and start ranks with "
    "conda-python-distributed and without PYTORCH_LAUNCH_TRACEABLE=0"
)

Process = namedtuple("Process", "pid parent started env")


def read_node(host, env, uid, seconds, job=None, step=None, root=""):
    """The ranks of user `uid` on this node, {"node", "ranks"}; `env` has the variables of this process.

    A rank is {"rank", "size", "launch", "step", "node", "pid", "threads", "fault"}; `fault` is why it has no `threads`.
    The main threads of processes that it started, such as workers of a DataLoader, are among its threads.
    """
    node = env.get("SLURMD_NODENAME") or host

    def describe(found):
        (pid, _, _, variables), children = found
        threads, fault = [], None
        try:
            threads = read_stacks(pid, variables, seconds)
        except LaunchError as error:
            fault = str(error)
        for child in children[:CHILDREN] if threads else ():
            try:
                threads.append({**read_stacks(child, variables, seconds)[0], "name": f"of process {child}"})
            except (LaunchError, IndexError):  # the permission to trace is not inherited
                continue
        launch, rank = _key(variables)
        if launch.startswith(("127.", "localhost:")):  # another world on each node
            launch = f"{launch} on {node}"
        values = {"rank": rank, "size": int(variables["WORLD_SIZE"]), "launch": launch, "node": node, "pid": pid}
        return {**values, "step": variables.get("SLURM_STEP_ID"), "threads": threads, "fault": fault}

    with ThreadPoolExecutor(WORKERS) as pool:
        return {"node": node, "ranks": list(pool.map(describe, find_ranks(root, uid, node, job, step)))}


def find_ranks(root, uid, node, job=None, step=None):
    """The ranks of user `uid` on this node, of a job and step if these are given, as text.

    Pairs of a rank's Process, and the numbers of the Pythons that it has started.
    """
    found = [_read(place, uid) for place in Path(f"{root}/proc").iterdir() if place.name.isdecimal()]
    processes = {one.pid: one for one in found if one and _is_of(one.env, node, job, step)}
    ranks, children = {}, {}
    for process in sorted(processes.values(), key=lambda process: process.started):
        parent = processes.get(process.parent)
        if parent is not None and _key(parent.env) == _key(process.env):  # it inherited the variables
            children.setdefault(process.parent, []).append(process.pid)
        else:
            ranks.setdefault(_key(process.env), process)  # a second program of the same task started later
    return [(process, children.get(process.pid, [])) for _, process in sorted(ranks.items())]


def _read(place, uid):
    """The Process with this directory in /proc if it is a Python of user `uid` and a rank, else None."""
    try:
        if place.stat().st_uid != uid:
            return None
        entries = (place / "environ").read_bytes().decode(errors="surrogateescape").split("\0")
        env = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        if not (env.get("RANK", "").isdecimal() and env.get("WORLD_SIZE", "").isdecimal()):
            return None
        program = os.readlink(str(place / "exe")).rpartition("/")[2]
        is_python = re.match(r"(python|pypy)[\d.]*[a-z]*( \(deleted\))?$", program)
        if not is_python and "/libpython" not in (place / "maps").read_text(errors="replace"):
            return None
        # in proc_pid_stat(5), the name in brackets before may have blanks
        fields = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:  # it has ended, or may not be read
        return None
    return Process(int(place.name), int(fields[1]), int(fields[19]), env)


def _is_of(env, node, job, step):
    # several nodes of a testbed share one host; MPI's ranks may have the node of their mpirun
    is_here = env.get("SLURMD_NODENAME", node) == node or any(env.get(name) for name in OF_MPI)
    return is_here and job in (None, env.get("SLURM_JOB_ID")) and step in (None, env.get("SLURM_STEP_ID"))


def _key(env):
    """A name that all ranks of a launch share, and the rank."""
    names = (env.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "PYTORCH_LAUNCH_ID"))
    place = "{}:{}".format(env.get("MASTER_ADDR", "?"), env.get("MASTER_PORT", "?"))
    return next((name for name in names if name not in NO_NAMES), place), int(env["RANK"])


def read_stacks(pid, env, seconds):
    """The threads of process `pid`, which started with variables `env`: the main thread first.

    A thread is {"name", "frames"}, a frame [function, file, line]; the innermost frame is first. Raises LaunchError.
    """
    # the directories of PATH as the rank sees them, then those of this process
    places = [f"/proc/{pid}/root{place}" for place in env.get("PATH", "").split(":") if place.startswith("/")]
    places += [place for place in os.environ.get("PATH", "").split(":") if place]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    fault = "py-spy not found on the PATH of the rank or of its node"
    for program in filter(None, (shutil.which("py-spy", path=place) for place in places)):
        command = [program, "dump", "--json", "--pid", str(pid)]
        try:
            done = subprocess.run(command, timeout=seconds, check=False, **pipes)
            break
        except OSError as error:  # that of an image may not start here
            fault = f"py-spy cannot be started: {program}: {error.strerror}"
        except subprocess.TimeoutExpired:
            if read_process(pid)[1] == "D":
                fault = "it waits in the kernel for a device or a file system"
                raise LaunchError(fault, "ask the site to check the node") from None
            raise LaunchError(f"no stack within {seconds} s: try again with a larger --timeout") from None
    else:
        raise LaunchError(fault, INSTALL)
    errors = done.stderr.decode(errors="replace")
    if done.returncode and ("ermission" in errors or "not permitted" in errors):
        raise LaunchError(f"no permission to trace it (kernel.yama.ptrace_scope={read(SCOPE) or 0})", ALLOW)
    if done.returncode:
        raise LaunchError(f"py-spy: {' '.join(errors.split())[:300] or f'exit status {done.returncode}'}")
    threads = []
    found = json.loads(done.stdout.decode(errors="replace"))
    for thread in sorted(found, key=lambda thread: thread.get("os_thread_id") != pid):
        frames = [[frame["name"], frame["filename"], frame["line"]] for frame in thread["frames"]]
        threads.append({"name": thread.get("thread_name") or f"thread {thread.get('os_thread_id')}", "frames": frames})
    return threads
