"""Which rank of which world this process is, from its environment; called by `launch`.

Launchers are known here and nowhere else. Each is one function of `LAUNCHERS` that takes the
environment and the host's name and returns its World, or None where it did not start this process.
"""

from pytorch_launch import LaunchError
from pytorch_launch.nodelist import NodeListError, first_host

# In an allocation but outside a step, `get-master` wants the job's list.
NODE_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")

# A batch script has SLURM_PROCID=0 and SLURM_NTASKS=8 as well, but it is no step: whoever believed
# them would wait for seven ranks that nobody starts. Only srun sets these, together.
STEP_MARKS = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST")

# torch's variable and the one of srun(1) that it must agree with.
STEP_SOURCES = {
    "RANK": "SLURM_PROCID",
    "WORLD_SIZE": "SLURM_STEP_NUM_TASKS",
    "LOCAL_RANK": "SLURM_LOCALID",
    "LOCAL_WORLD_SIZE": "SLURM_STEP_TASKS_PER_NODE",
    "GROUP_RANK": "SLURM_NODEID",
}

STRAY_EXPORT = "look for a stray export in the job script"


class WorldError(LaunchError):
    """Variables that do not describe a world; the message names them with their values."""


class World:
    """This process among the others that were started with it.

    `rank`, `size`              in the world, rank from 0
    `local_rank`, `local_size`  among the ranks of this node
    `node_rank`                 of this node among the nodes, from 0
    `node`                      name of this node
    `first_host`                name of the node of rank 0
    `job`, `step`               Slurm's numbers, None outside a job or a step
    `reserved_port`             first port that `srun --resv-ports` set aside, or None
    `node_cpus`                 CPUs that the ranks of this node have together, None if not known
    `cpus_per_task`             CPUs that the user asked for per rank, None if not asked for
    `source`                    who started the world, for people to read
    `exported`                  true if the launcher has exported torch's variables already
    """

    def __init__(
        self,
        *,
        rank,
        size,
        local_rank,
        local_size,
        node_rank,
        node,
        first_host,
        source,
        job=None,
        step=None,
        reserved_port=None,
        node_cpus=None,
        cpus_per_task=None,
        exported=False,
    ):
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.local_size = local_size
        self.node_rank = node_rank
        self.node = node
        self.first_host = first_host
        self.source = source
        self.job = job
        self.step = step
        self.reserved_port = reserved_port
        self.node_cpus = node_cpus
        self.cpus_per_task = cpus_per_task
        self.exported = exported

    def variables(self):
        """The variables by which torch knows a rank, as torchrun(1) names them."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "GROUP_RANK": str(self.node_rank),
        }


def discover(env, hostname):
    """The World of the process with environment `env` on `hostname`. Raises WorldError."""
    return next(filter(None, (launcher(env, hostname) for launcher in LAUNCHERS)))


def node_list(env):
    """The node list of the step, else of the job. Raises WorldError if there is none."""
    for name in NODE_LISTS:
        if env.get(name):
            return env[name]
    raise WorldError(f"none of {', '.join(NODE_LISTS)} is set: run inside a job, or give a list")


def torchrun(env, hostname):
    """The world of torchrun (torch.distributed.run, "Environment Variables"), as it exported it."""
    if not env.get("TORCHELASTIC_RUN_ID"):
        return None
    return World(
        rank=_number(env, "RANK"),
        size=_number(env, "WORLD_SIZE"),
        local_rank=_number(env, "LOCAL_RANK"),
        local_size=_number(env, "LOCAL_WORLD_SIZE"),
        node_rank=_number(env, "GROUP_RANK"),
        node=env.get("SLURMD_NODENAME") or hostname,
        first_host=env.get("MASTER_ADDR"),
        source=f"torchrun run {env['TORCHELASTIC_RUN_ID']}",
        job=_optional_number(env, "SLURM_JOB_ID"),
        exported=True,
    )


def slurm_step(env, hostname):
    """The world of a Slurm step (srun(1), "OUTPUT ENVIRONMENT VARIABLES").

    A step may hold fewer nodes than its job, so the job's variables are never read.
    """
    step = env.get("SLURM_STEP_ID") or env.get("SLURM_STEPID")
    if not step or not all(env.get(name) for name in STEP_MARKS):
        return None
    world = World(
        rank=_number(env, "SLURM_PROCID"),
        size=_number(env, "SLURM_STEP_NUM_TASKS"),
        local_rank=_number(env, "SLURM_LOCALID"),
        local_size=_local_size(env),
        node_rank=_number(env, "SLURM_NODEID"),
        node=env.get("SLURMD_NODENAME") or hostname,
        first_host=_first_host(env, "SLURM_STEP_NODELIST"),
        source=f"Slurm step {env.get('SLURM_JOB_ID')}.{step}",
        job=_number(env, "SLURM_JOB_ID"),
        step=_number(env, "SLURM_STEP_ID" if env.get("SLURM_STEP_ID") else "SLURM_STEPID"),
        reserved_port=_first_port(env, "SLURM_STEP_RESV_PORTS"),
        node_cpus=_optional_number(env, "SLURM_CPUS_ON_NODE"),
        cpus_per_task=_optional_number(env, "SLURM_CPUS_PER_TASK"),
    )
    _check_inside(env, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", world.size)
    _check_inside(env, "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", world.local_size)
    for name, value in world.variables().items():
        source = STEP_SOURCES[name]
        _check_exported(env, name, value, f"{source}={env[source]}")
    return world


def single_process(env, hostname):
    """A world of one, which every process is that no launcher claims.

    A batch script is such a process, with the SLURM_PROCID=0 of its job.
    """
    if env.get("SLURM_PROCID", "0") != "0":
        raise WorldError(
            f"SLURM_PROCID={env['SLURM_PROCID']} is a rank, but one of {', '.join(STEP_MARKS)} and "
            "SLURM_STEP_ID is missing: pass Slurm's variables on (a container without --cleanenv)"
        )
    world = World(
        rank=0,
        size=1,
        local_rank=0,
        local_size=1,
        node_rank=0,
        node=env.get("SLURMD_NODENAME") or hostname,
        first_host="127.0.0.1",
        source="single process",
        job=_optional_number(env, "SLURM_JOB_ID"),
    )
    for name, value in world.variables().items():
        _check_exported(env, name, value, "no srun or torchrun started this process")
    return world


# In this order: torchrun inside a step has started more ranks than the step has tasks.
LAUNCHERS = (torchrun, slurm_step, single_process)


def _number(env, name):
    value = env.get(name, "(not set)")
    if not value.isdecimal():
        raise WorldError(f"{name}={value} is not a number: {STRAY_EXPORT}")
    return int(value)


def _optional_number(env, name):
    return _number(env, name) if env.get(name) else None


def _first_host(env, name):
    try:
        return first_host(env[name])
    except NodeListError as error:
        raise WorldError(f"{name}: {error}") from error


def _first_port(env, name):
    """The first port of `12000-12003` or `12000,12005`, None if none is reserved."""
    ports = env.get(name)
    if not ports:
        return None
    first = ports.partition(",")[0].partition("-")[0]
    if not (first.isdecimal() and 1 <= int(first) <= 65535):
        raise WorldError(f"{name}={ports} does not start with a port: {STRAY_EXPORT}")
    return int(first)


def _local_size(env):
    """The tasks on this node: entry SLURM_NODEID of the list SLURM_STEP_TASKS_PER_NODE."""
    tasks = _tasks_per_node(env, "SLURM_STEP_TASKS_PER_NODE")
    if sum(tasks) != _number(env, "SLURM_STEP_NUM_TASKS"):
        raise WorldError(
            f"SLURM_STEP_NUM_TASKS={env['SLURM_STEP_NUM_TASKS']} is not the sum of "
            f"SLURM_STEP_TASKS_PER_NODE={env['SLURM_STEP_TASKS_PER_NODE']}: {STRAY_EXPORT}"
        )
    _check_inside(env, "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE", len(tasks))
    return tasks[_number(env, "SLURM_NODEID")]


def _tasks_per_node(env, name):
    """The list of tasks per node that Slurm abbreviates: `2(x3),1` is [2, 2, 2, 1]."""
    tasks = []
    for group in env.get(name, "").split(","):
        count, repeated, times = group.partition("(x")
        if not repeated:
            times = "1)"
        if not (count.isdecimal() and times[:-1].isdecimal() and times.endswith(")")):
            raise WorldError(f"{name}={env.get(name, '')} is not like 2(x3),1: {STRAY_EXPORT}")
        tasks += [int(count)] * int(times[:-1])
    return tasks


def _check_inside(env, index, bound, size):
    """Raise WorldError unless the variable `index` is below the `size` that `bound` stands for."""
    if _number(env, index) >= size:
        raise WorldError(f"{index}={env[index]} is outside 0 to {size - 1}, as of {bound}={env[bound]}: {STRAY_EXPORT}")


def _check_exported(env, name, value, reason):
    """Raise WorldError if the user exported another `value` of torch's variable `name`."""
    if env.get(name, value) not in ("", value):
        raise WorldError(f"{name}={env[name]} is exported, but {reason}: unset {name}")
