# SPDX-License-Identifier: BSD-3-Clause
"""Finds the ranks of a job among the processes of this node, by the variables with which they started.

`root` goes before every path: "" on a node, a directory in the tests.
"""

import os
import re
from collections import namedtuple
from pathlib import Path

#: Variables of ranks that mpirun started.
OF_MPI = ("OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK")

Rank = namedtuple("Rank", "rank size launch pid children env")
Rank.__doc__ = """A rank and its process: its number, its world's size, a name that all ranks of its launch share, its
process, the Pythons that this has started, such as workers of a DataLoader, and the variables of its start."""

Process = namedtuple("Process", "pid parent started env")


def find_ranks(root, uid, node, job=None, step=None):
    """The Ranks of user `uid` on this node, of a job and step if these are given, as text."""
    processes = {}
    for place in Path(f"{root}/proc").iterdir():
        if place.name.isdecimal():
            process = _read(place, uid)
            if process is not None and _is_of(process.env, node, job, step):
                processes[process.pid] = process
    ranks, children = {}, {}
    for process in sorted(processes.values(), key=lambda process: process.started):
        key = _key(process.env)
        parent = processes.get(process.parent)
        if parent is not None and _key(parent.env) == key:  # it inherited the variables
            children.setdefault(process.parent, []).append(process.pid)
        else:
            ranks.setdefault(key, process)  # a second program of the same task started later
    return [
        Rank(key[1], int(process.env["WORLD_SIZE"]), key[0], process.pid, children.get(process.pid, []), process.env)
        for key, process in ranks.items()
    ]


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
    return step is None or (env.get("SLURM_STEP_ID") or env.get("SLURM_STEPID")) == step


def _launch(env):
    """A name that all ranks of a launch share."""
    name = env.get("TORCHELASTIC_RUN_ID") or env.get("PYTORCH_LAUNCH_ID")
    return name or "{}:{}".format(env.get("MASTER_ADDR", "?"), env.get("MASTER_PORT", "?"))


def _key(env):
    return _launch(env), int(env["RANK"])
