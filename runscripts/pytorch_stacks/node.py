# SPDX-License-Identifier: BSD-3-Clause
"""Finds the ranks of a job on this node by the variables with which they started, and reads their stacks.

`root` goes before every path: "" on a node, a directory in the tests.
"""

import os
import re
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pytorch_stacks.spy import SpyError, read_stacks

#: py-spy processes at a time; of the processes that a rank started, so many are read.
WORKERS, CHILDREN = 8, 16
#: Variables of ranks that mpirun started.
OF_MPI = ("OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK")

Process = namedtuple("Process", "pid parent started env")


def read_node(host, env, uid, seconds, job=None, step=None, root=""):
    """The ranks of user `uid` on this node, {"node", "ranks"}; `env` has the variables of this process.

    A rank is {"rank", "size", "launch", "step", "node", "pid", "threads", "fault"}; `fault` is why it has no `threads`.
    The main threads of processes that it started, such as workers of a DataLoader, are among its threads.
    """
    node = env.get("SLURMD_NODENAME") or host

    def describe(found):
        process, children = found
        threads, fault = [], None
        try:
            threads = read_stacks(process.pid, process.env, seconds)
        except SpyError as error:
            fault = str(error)
        for child in children[:CHILDREN] if threads else ():
            try:
                threads.append({**read_stacks(child, process.env, seconds)[0], "name": f"of process {child}"})
            except (SpyError, IndexError):  # the permission to trace is not inherited
                continue
        launch, rank = _key(process.env)
        values = {"rank": rank, "size": int(process.env["WORLD_SIZE"]), "launch": launch, "step": _step(process.env)}
        return {**values, "node": node, "pid": process.pid, "threads": threads, "fault": fault}

    with ThreadPoolExecutor(WORKERS) as pool:
        return {"node": node, "ranks": list(pool.map(describe, find_ranks(root, uid, node, job, step)))}


def find_ranks(root, uid, node, job=None, step=None):
    """The ranks of user `uid` on this node, of a job and step if these are given, as text.

    Pairs of a rank's Process, and the numbers of the Pythons that it has started.
    """
    processes = {}
    for place in Path(f"{root}/proc").iterdir():
        process = _read(place, uid) if place.name.isdecimal() else None
        if process is not None and _is_of(process.env, node, job, step):
            processes[process.pid] = process
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
        if not (env.get("RANK", "").isdecimal() and env.get("WORLD_SIZE", "").isdecimal() and _is_python(place)):
            return None
        # proc_pid_stat(5): the name in brackets may have blanks; then the state, the parent, ..., the start
        fields = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:  # it has ended, or may not be read
        return None
    return Process(int(place.name), int(fields[1]), int(fields[19]), env)


def _is_python(place):
    """Whether a process runs Python: by the name of its program, else by a library that it has mapped."""
    if re.match(r"(python|pypy)[\d.]*[a-z]*( \(deleted\))?$", os.readlink(str(place / "exe")).rpartition("/")[2]):
        return True
    return "/libpython" in (place / "maps").read_text(errors="replace")


def _is_of(env, node, job, step):
    if job is not None and env.get("SLURM_JOB_ID") != job:
        return False
    # several nodes of a testbed share one host; MPI's ranks may have the node of their mpirun
    if env.get("SLURMD_NODENAME", node) != node and not any(env.get(name) for name in OF_MPI):
        return False
    return step is None or _step(env) == step


def _step(env):
    return env.get("SLURM_STEP_ID") or env.get("SLURM_STEPID")


def _key(env):
    """A name that all ranks of a launch share, and the rank."""
    name = env.get("TORCHELASTIC_RUN_ID") or env.get("PYTORCH_LAUNCH_ID")
    return name or "{}:{}".format(env.get("MASTER_ADDR", "?"), env.get("MASTER_PORT", "?")), int(env["RANK"])
