"""Which rank of which world this process is; filled in by `launchers`, read by everything after them."""

from pytorch_launch import MOST_DIGITS, LaunchError, is_number

# In an allocation but outside a step, `get-master` wants the job's list.
NODE_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")

# Set with --virtual-local-rank, for launches inside that one: there LOCAL_RANK=0 contradicts nothing.
VIRTUAL = "PYTORCH_LAUNCH_VIRTUAL_LOCAL_RANK"

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
    `source`                    who started the world, for people to read
    `job`, `step`               Slurm's numbers, None outside a job or a step
    `launch`                    a number that all its ranks share and another launch hardly has, where
                                there is no step; None where the launcher gives none
    `reserved_port`             first port that `srun --resv-ports` set aside, or None
    `node_cpus`                 CPUs that the ranks of this node have together, None if not known
    `cpus_per_task`             CPUs that the user asked for per rank, None if not asked for
    `unbound`                   true if the launcher says that it bound no rank to CPUs
    `exported`                  true if the launcher has exported torch's variables already
    `allocation`                tasks and nodes of the allocation, where this is its only process; else (1, 1)
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
        launch=None,
        reserved_port=None,
        node_cpus=None,
        cpus_per_task=None,
        unbound=False,
        exported=False,
        allocation=(1, 1),
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
        self.launch = launch
        self.reserved_port = reserved_port
        self.node_cpus = node_cpus
        self.cpus_per_task = cpus_per_task
        self.unbound = unbound
        self.exported = exported
        self.allocation = allocation

    def variables(self):
        """The variables by which torch knows a rank, as torchrun(1) names them."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "GROUP_RANK": str(self.node_rank),
        }


def node_list(env):
    """The node list of the step, else of the job. Raises WorldError if there is none."""
    for name in NODE_LISTS:
        if env.get(name):
            return env[name]
    raise WorldError(f"none of {', '.join(NODE_LISTS)} is set: run inside a job, or give a list")


def number(env, name):
    """The variable `name` as a number from 0. Raises WorldError."""
    value = env.get(name)
    if value is None:
        raise WorldError(
            f"{name} is not set, but others of its launcher are: pass all of them on (a container without --cleanenv)"
        )
    if not is_number(value):
        shown = value if len(value) <= MOST_DIGITS else f"{value[:MOST_DIGITS]}..."
        raise WorldError(f"{name}={shown} is not a number of at most {MOST_DIGITS} digits: {STRAY_EXPORT}")
    return int(value)


def optional_number(env, name):
    """The same, None if the variable is not set."""
    return number(env, name) if env.get(name) else None


def check_inside(env, index, bound, size):
    """Raise WorldError unless the variable `index` is below the `size` that `bound` stands for."""
    if number(env, index) >= size:
        raise WorldError(f"{index}={env[index]} is outside 0 to {size - 1}, as of {bound}={env[bound]}: {STRAY_EXPORT}")


def check_step(env, world):
    """Raise WorldError if `world`, of torchrun or mpirun, has fewer ranks than the Slurm step around it has tasks.

    Then srun has started this process, and the other variables are left from a launch around srun. One task on each
    node tells nothing: mpirun's daemons are such a step, also on nodes that get no rank.
    """
    tasks, nodes = (optional_number(env, f"SLURM_STEP_NUM_{what}") for what in ("TASKS", "NODES"))
    if tasks is not None and tasks != nodes and world.size < tasks:
        raise WorldError(
            f"{world.source} says WORLD_SIZE={world.size}, but SLURM_STEP_NUM_TASKS={tasks}: unset the variables "
            "of the launch around srun, such as TORCHELASTIC_RUN_ID or OMPI_COMM_WORLD_RANK"
        )


def check_exported(env, world, sources, reason=None):
    """Raise WorldError if the user exported another value of one of torch's variables than `world` has.

    `sources` has the launcher's name for each of them; without, `reason` says why it cannot be.
    """
    for name, value in world.variables().items():
        if name == "LOCAL_RANK" and env.get(VIRTUAL):
            continue  # our own, around this launch
        if env.get(name, value) not in ("", value):
            source = sources.get(name)
            because = f"{source}={env[source]}" if source else reason
            raise WorldError(f"{name}={env[name]} is exported, but {because}: unset {name}")
