# SPDX-License-Identifier: BSD-3-Clause
"""Reads the stacks of all ranks on this node, as a value that JSON can have."""

from concurrent.futures import ThreadPoolExecutor

from pytorch_launch import LaunchError
from pytorch_launch.devices import choose_devices
from pytorch_launch.launchers.variables import node_name
from pytorch_launch.visible import visible_gpus

from pytorch_stacks.processes import find_ranks
from pytorch_stacks.spy import SpyError, read_stacks

#: py-spy processes at a time.
WORKERS = 8

#: Of the processes that a rank started, so many are read.
CHILDREN = 16


def read_node(host, env, uid, seconds, job=None, step=None, root=""):
    """The ranks of user `uid` on this node, {"node", "ranks"}; `env` has the variables of this process.

    A rank is {"rank", "size", "launch", "step", "node", "pid", "gpu", "threads", "fault"}; `fault` is why it has no
    `threads`. The main threads of processes that it started are among its threads.
    """
    name = node_name(env, host)
    ranks = sorted(find_ranks(root, uid, name, job, step), key=lambda rank: (rank.launch, rank.rank))
    with ThreadPoolExecutor(WORKERS) as pool:
        return {"node": name, "ranks": list(pool.map(lambda rank: _describe(rank, name, seconds, root), ranks))}


def _describe(rank, name, seconds, root):
    threads, fault = [], None
    try:
        threads = read_stacks(rank.pid, rank.env, seconds)
    except SpyError as error:
        fault = str(error)
    for child in rank.children[:CHILDREN] if threads else ():
        try:
            threads.append({**read_stacks(child, rank.env, seconds)[0], "name": f"of process {child}"})
        except (SpyError, IndexError):  # the permission to trace is not inherited
            continue
    step = rank.env.get("SLURM_STEP_ID") or rank.env.get("SLURM_STEPID")
    return {
        "rank": rank.rank,
        "size": rank.size,
        "launch": rank.launch,
        "step": step,
        "node": name,
        "pid": rank.pid,
        "gpu": gpu_number(rank.env, root),
        "threads": threads,
        "fault": fault,
    }


def gpu_number(env, root):
    """The number of a rank's GPU among those of its node, None if not known."""
    local, size = env.get("LOCAL_RANK", ""), env.get("LOCAL_WORLD_SIZE", "")
    if not (local.isdecimal() and size.isdecimal()):
        return None
    try:
        seen = visible_gpus(env, root)
        if seen is None:
            return None
        gpu = choose_devices(seen, root, int(local), int(size)).gpu
    except LaunchError:
        return None
    return next((number for number, found in enumerate(seen.present) if gpu and found.location == gpu.location), None)
