# SPDX-License-Identifier: BSD-3-Clause
"""The variables of launchers as numbers and names, checked against each other."""

from pytorch_launch import MOST_DIGITS, is_number
from pytorch_launch.world import VIRTUAL, WorldError

# In an allocation but outside a step, `get-master` needs the list of the job.
NODE_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")

# Set in a job of Slurm, of Flux (in a script too: flux-environment(7)), and of PBS.
JOBS = ("SLURM_JOB_ID", "FLUX_URI", "PBS_JOBID")

STRAY_EXPORT = "look for a stray export in the job script"


def node_list(env):
    """The node list of the step, else of the job. Raises WorldError if there is none."""
    for name in NODE_LISTS:
        if env.get(name):
            return env[name]
    raise WorldError(f"none of {', '.join(NODE_LISTS)} is set", "run inside a job, or pass a list")


def node_name(env, hostname):
    """The name of this node in node lists, which may differ from that of the host."""
    return env.get("SLURMD_NODENAME") or hostname


def in_slurm_job(env):
    """Whether `env` is of a process in a job of Slurm."""
    return bool(env.get("SLURM_JOB_ID"))


def in_job(env):
    """Whether `env` is of a process in a job, in its script or in a task."""
    return any(env.get(name) for name in JOBS)


def is_first_task_of_node(env):
    """Whether `env` is of the first task of a launch on this node, or outside any launch."""
    for name in ("FLUX_TASK_LOCAL_ID", "PALS_LOCAL_RANKID"):
        if env.get(name):
            return env[name] == "0"
    return not env.get("SLURM_STEP_ID") or env.get("SLURM_LOCALID", "0") == "0"


def number(env, name):
    """The variable `name` as a number from 0. Raises WorldError."""
    value = env.get(name)
    if value is None:
        raise WorldError(
            f"{name} is not set, but other variables of its launcher are",
            "pass all of them on (a container without --cleanenv)",
        )
    if not is_number(value):
        shown = value if len(value) <= MOST_DIGITS else f"{value[:MOST_DIGITS]}..."
        raise WorldError(f"{name}={shown} is not a number of at most {MOST_DIGITS} digits", STRAY_EXPORT)
    return int(value)


def optional_number(env, name):
    """The same, None if the variable is not set."""
    return number(env, name) if env.get(name) else None


def text_number(text):
    """A number that follows from `text` alone (the hash FNV-1a of 32 bits; Fowler, Noll and Vo)."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 % 2**32
    return value


def check_inside(env, index, bound, size):
    """Raise WorldError unless the variable `index` is below `size`, the meaning of the variable `bound`."""
    if number(env, index) >= size:
        raise WorldError(f"{index}={env[index]} is outside 0 to {size - 1}, as of {bound}={env[bound]}", STRAY_EXPORT)


def check_step(env, world):
    """Raise WorldError if `world`, of torchrun or mpirun, has fewer ranks than the Slurm step around it has tasks.

    Then srun has started this process, and the other variables are left from a launch around srun. A step with one
    task on each node proves nothing: mpirun's daemons are such a step, also on nodes without ranks.
    """
    tasks, nodes = (optional_number(env, f"SLURM_STEP_NUM_{what}") for what in ("TASKS", "NODES"))
    if tasks is not None and tasks != nodes and world.size < tasks:
        raise WorldError(
            f"{world.source} has WORLD_SIZE={world.size}, but SLURM_STEP_NUM_TASKS={tasks}",
            "unset the variables of the launch around srun, such as TORCHELASTIC_RUN_ID or OMPI_COMM_WORLD_RANK",
        )


def check_exported(env, world, sources, reason=None):
    """Raise WorldError if one of torch's variables is exported with another value than `world` has.

    `sources` has the launcher's name for each of them; `reason` is why the value is impossible if it has none.
    """
    for name, value in world.variables().items():
        if name == "LOCAL_RANK" and env.get(VIRTUAL):
            continue  # exported by the launch around this one
        if env.get(name, value) not in ("", value):
            source = sources.get(name)
            because = f"{source}={env[source]}" if source else reason
            raise WorldError(f"{name}={env[name]} is exported, but {because}", f"unset {name}")
