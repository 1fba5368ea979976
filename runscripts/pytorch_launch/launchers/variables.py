# SPDX-License-Identifier: BSD-3-Clause
"""Reads the variables of a launcher into a World: numbers and lists that are checked, and errors that name them."""

import os

from pytorch_launch import MOST_DIGITS, LaunchError, is_number
from pytorch_launch.nodelist import hosts
from pytorch_launch.world import OF_TORCH, World, check_exported

STRAY_EXPORT = "look for a stray export in the job script"

#: Lists of nodes: of the step, and of the job, which a process outside a step has.
STEP_NODES = "SLURM_STEP_NODELIST"
NODE_LISTS = (STEP_NODES, "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST_HET_GROUP_0")


def number(env, name):
    """The variable `name` as a number from 0. Raises LaunchError."""
    value = env.get(name)
    if value is None:
        fault = f"{name} is not set, but other variables of its launcher are"
        raise LaunchError(fault, "pass all of them on (a container without --cleanenv)")
    if not is_number(value):
        shown = value
        if len(value) > MOST_DIGITS:
            shown = f"{value[:MOST_DIGITS]}..."
        raise LaunchError(f"{name}={shown} is not a number of at most {MOST_DIGITS} digits", STRAY_EXPORT)
    return int(value)


def optional_number(env, name):
    """The same, None if the variable is not set."""
    if not env.get(name):
        return None
    return number(env, name)


def read_list(env, name):
    """The hosts of the node list in the variable `name`. Raises LaunchError."""
    try:
        return hosts(env[name])
    except LaunchError as error:
        raise LaunchError(f"{name}: {error.fault}", error.remedy) from error


def is_node_of_job(env, host):
    """Whether the job or the step has a node of this name, compared up to the first dot. Raises LaunchError."""
    short = host.partition(".")[0]
    return any(short in read_list(env, name) for name in NODE_LISTS if env.get(name))


def launch_number(text):
    """A number that identifies the launch that its launcher calls `text`, None for no text."""
    if not text:
        return None
    from zlib import crc32  # a shared library: ranks of Slurm do not need it

    return crc32(os.fsencode(text))


def make_world(env, names, **fields):
    """The World of a launcher whose variables `names` have the values of OF_TORCH; `fields` are its other fields.

    A field takes precedence over the variable of the same value. Raises LaunchError if the numbers, or exported
    variables of torch, contradict each other.
    """
    sources = dict(zip(OF_TORCH, names))
    for name, field in zip(OF_TORCH, World.fields.split()):
        if field not in fields:
            fields[field] = number(env, sources[name])
    world = World(**fields, **fields_of_slurm(env))
    of_size = sources["WORLD_SIZE"]
    check_inside(env, sources["RANK"], of_size, world.size)
    check_inside(env, sources["LOCAL_RANK"], sources.get("LOCAL_WORLD_SIZE", of_size), world.local_size)
    if world.local_size > world.size:
        fault = f"{world.local_size} ranks on this node are more than {of_size}={world.size} in the world"
        raise LaunchError(fault, "look for variables of another launch")
    if not world.exported:
        check_exported(env, world, sources, f"{world.source} started this process")
    return world


def fields_of_slurm(env):
    """Fields of a World that Slurm gives to all processes of a job, however they were started.

    `node_gpus` is how many GPUs all tasks of the step have here, `step_gpus` the numbers of this task's. A device
    cgroup does not change the numbers. srun passes none of its options on. (srun(1), "OUTPUT ENVIRONMENT VARIABLES";
    gres_common.c; seen with 22.05.)
    """
    node_gpus = step_gpus = None
    if is_number(env.get("SLURM_GPUS_ON_NODE", "")):
        node_gpus = int(env["SLURM_GPUS_ON_NODE"])
    entries = env.get("SLURM_STEP_GPUS", "").split(",")
    if all(map(is_number, entries)):
        step_gpus = [int(entry) for entry in entries]
    restarts = optional_number(env, "SLURM_RESTART_COUNT") or 0
    return {"node_gpus": node_gpus, "step_gpus": step_gpus, "restarts": restarts}


def check_inside(env, index, bound, size):
    """Raise LaunchError unless the variable `index` is below `size`, the meaning of the variable `bound`."""
    if number(env, index) >= size:
        raise LaunchError(f"{index}={env[index]} is outside 0 to {size - 1}, as of {bound}={env[bound]}", STRAY_EXPORT)
