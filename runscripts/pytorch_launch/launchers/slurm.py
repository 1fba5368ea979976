# SPDX-License-Identifier: BSD-3-Clause
"""The worlds of srun."""

from pytorch_launch import is_number
from pytorch_launch.launchers.variables import (
    STRAY_EXPORT,
    check_exported,
    check_inside,
    node_name,
    number,
    optional_number,
)
from pytorch_launch.nodelist import NodeListError, first_host
from pytorch_launch.world import World, WorldError

# A batch script has SLURM_PROCID=0 and SLURM_NTASKS=8 as well, but it is not a step: a world of 8 would wait for
# seven ranks that never start. Only srun sets all of these.
STEP_MARKS = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST")

# torch's variable, and the one of srun(1) with the same value.
SOURCES = {
    "RANK": "SLURM_PROCID",
    "WORLD_SIZE": "SLURM_STEP_NUM_TASKS",
    "LOCAL_RANK": "SLURM_LOCALID",
    "LOCAL_WORLD_SIZE": "SLURM_STEP_TASKS_PER_NODE",
    "GROUP_RANK": "SLURM_NODEID",
}


def step(env, hostname):
    """The world of a Slurm step (srun(1), "OUTPUT ENVIRONMENT VARIABLES").

    A step may have fewer nodes than its job, so the job's variables are never read.
    """
    step_name = "SLURM_STEP_ID" if env.get("SLURM_STEP_ID") else "SLURM_STEPID"
    if not env.get(step_name) or not all(env.get(name) for name in STEP_MARKS):
        return None
    world = World(
        rank=number(env, "SLURM_PROCID"),
        size=number(env, "SLURM_STEP_NUM_TASKS"),
        local_rank=number(env, "SLURM_LOCALID"),
        local_size=_local_size(env),
        node_rank=number(env, "SLURM_NODEID"),
        node=node_name(env, hostname),
        first_host=_first_host(env, "SLURM_STEP_NODELIST"),
        source=f"Slurm step {env.get('SLURM_JOB_ID')}.{env[step_name]}",
        job=number(env, "SLURM_JOB_ID"),
        step=number(env, step_name),
        reserved_port=_first_port(env, "SLURM_STEP_RESV_PORTS"),
        node_cpus=optional_number(env, "SLURM_CPUS_ON_NODE"),
        cpus_per_task=optional_number(env, "SLURM_CPUS_PER_TASK"),
        unbound=env.get("SLURM_CPU_BIND_TYPE") == "none",
    )
    check_inside(env, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", world.size)
    check_inside(env, "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", world.local_size)
    check_exported(env, world, SOURCES)
    return world


def _first_host(env, name):
    try:
        return first_host(env[name])
    except NodeListError as error:
        raise WorldError(f"{name}: {error.fault}", error.remedy) from error


def _first_port(env, name):
    """The first port of `12000-12003` or `12000,12005`, None if none is reserved."""
    ports = env.get(name)
    if not ports:
        return None
    first = ports.partition(",")[0].partition("-")[0]
    if not (is_number(first) and 1 <= int(first) <= 65535):
        raise WorldError(f"{name}={ports} does not start with a port", STRAY_EXPORT)
    return int(first)


def _local_size(env):
    """The tasks on this node: entry SLURM_NODEID of the list SLURM_STEP_TASKS_PER_NODE."""
    name = "SLURM_STEP_TASKS_PER_NODE"
    node = number(env, "SLURM_NODEID")
    nodes = tasks = 0
    here = None
    for count, times in _tasks_per_node(env, name):
        if nodes <= node < nodes + times:
            here = count
        nodes += times
        tasks += count * times
    if tasks != number(env, "SLURM_STEP_NUM_TASKS"):
        raise WorldError(
            f"SLURM_STEP_NUM_TASKS={env['SLURM_STEP_NUM_TASKS']} is not the sum of {name}={env[name]}", STRAY_EXPORT
        )
    check_inside(env, "SLURM_NODEID", name, nodes)
    return here


def _tasks_per_node(env, name):
    """The tasks per node as pairs (tasks, nodes): Slurm writes 2, 2, 2, 1 as `2(x3),1`, here [(2, 3), (1, 1)].

    It is never expanded to an entry for each node: every rank reads it, and a step may have thousands of nodes.
    """
    groups = []
    for group in env.get(name, "").split(","):
        count, repeated, times = group.partition("(x")
        if not repeated:
            times = "1)"
        if not (is_number(count) and is_number(times[:-1]) and times.endswith(")")):
            raise WorldError(f"{name}={env.get(name, '')} is not like 2(x3),1", STRAY_EXPORT)
        groups.append((int(count), int(times[:-1])))
    return groups
