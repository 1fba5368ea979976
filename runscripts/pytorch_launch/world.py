# SPDX-License-Identifier: BSD-3-Clause
"""The world of a launch: this process among the ranks that were started with it; and the variables that describe it."""

from pytorch_launch import MOST_DIGITS, LaunchError, Value, ancestors, is_number, read
from pytorch_launch.nodelist import hosts

# --virtual-local-rank sets it, for launches inside that one, where LOCAL_RANK=0 contradicts nothing.
VIRTUAL = "PYTORCH_LAUNCH_VIRTUAL_LOCAL_RANK"

# Beginning of the variables with which the agent of `torchrun-distributed` tells its workers what it had: THREADS, the
# OMP_NUM_THREADS that is not the user's; CPUS, the number of its CPUs; and OpenMP's variables, which it does without.
AGENT = "PYTORCH_LAUNCH_AGENT_"

# The name of this launch, by which a program can detect ranks of another launch at the rendezvous.
LAUNCH_ID = "PYTORCH_LAUNCH_ID"

# Prefixes of the variables that a module sets for some worlds only, as the world is not known when it is
# loaded: PYTORCH_MULTI_NODE_NCCL_NET becomes NCCL_NET if the ranks are on more than one node, PYTORCH_ONE_NODE_NCCL_NET
# if all of them are on one.
MULTI_NODE = "PYTORCH_MULTI_NODE_"
ONE_NODE = "PYTORCH_ONE_NODE_"
DISTRIBUTED = "PYTORCH_DISTRIBUTED_"

# How a node is called on the fast network, with `*` for its name up to the first dot; and the interfaces there by exact
# names, separated by blanks, in order of preference.
FABRIC_NAME = "PYTORCH_FABRIC_NAME"
SOCKET_IFNAME = "PYTORCH_SOCKET_IFNAME"

# In an allocation but outside a step, `get-master` needs the list of the job.
NODE_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST_HET_GROUP_0")

# Set in a job of Slurm, of Flux (in a script too: flux-environment(7)), of PBS, and of LSF; and the programs that start
# its script where no variable has the number of this process. That of Flux has a number behind its name.
JOBS = ("SLURM_JOB_ID", "FLUX_URI", "PBS_JOBID", "LSB_JOBID")
DAEMONS = ("flux-broker", "pbs_mom", "sbatchd", "res")

STRAY_EXPORT = "look for a stray export in the job script"

# For variables of another launch, which sbatch and srun pass on.
SUBMIT = "submit the job from a shell without the variables of another launch, or with sbatch --export=NONE"

# The variables by which torch knows a rank, as torchrun(1) names them, and the fields of a World with their values.
OF_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
NUMBERS = ("rank", "size", "local_rank", "local_size", "node_rank")


class World(Value):
    """This process among the ranks that were started with it.

    `rank`, `size`, `local_rank`, `local_size`, `node_rank`  as torch numbers them
    `node`           name of this node
    `first_host`     name of the node of rank 0, None if the launcher does not report it
    `source`         what started the world, for messages
    `job`, `step`    Slurm's numbers, None outside a job or a step
    `launch`         a number that all its ranks share, and another launch is unlikely to have, where there is no step;
                     None where the launcher gives none
    `reserved_port`  first port that `srun --resv-ports` set aside, or None
    `node_cpus`      CPUs that the ranks of this node have together, None if not known
    `cpus_per_task`  CPUs that the user requested per rank, None if not requested
    `masks`          of the ranks of this node, a list of sets in the launcher's numbers, None if not known
    `unbound`        true if the launcher reports that it bound no rank to CPUs
    `exported`       true if the launcher has exported torch's variables already
    `allocation`     tasks and nodes of the allocation, and what starts processes on all of them, if this is its only
                     process; else (1, 1, "")
    `strays`         names of variables of a launch around this job, which do not hold for this process
    `problem`        a Problem that follows from these, or None
    """

    DEFAULTS = {
        **dict.fromkeys(("job", "step", "launch", "reserved_port", "node_cpus", "cpus_per_task", "masks", "problem")),
        **{"unbound": False, "exported": False, "allocation": (1, 1, ""), "strays": ()},
    }

    @property
    def spans_nodes(self):
        return self.local_size < self.size

    def variables(self):
        return {name: str(getattr(self, field)) for name, field in zip(OF_TORCH, NUMBERS)}


def read_list(env, name):
    """The hosts of the node list in the variable `name`. Raises LaunchError."""
    try:
        return hosts(env[name])
    except LaunchError as error:
        raise LaunchError(f"{name}: {error.fault}", error.remedy) from error


def node_name(env, hostname):
    """The name of this node in node lists, which may differ from that of the host."""
    return env.get("SLURMD_NODENAME") or hostname


def in_job(env):
    """Whether `env` is of a process in a job, in its script or in a task."""
    return any(env.get(name) for name in JOBS)


def is_first_task_of_node(env):
    """Whether `env` is of the first task of a launch on this node, or outside any launch."""
    names = ("FLUX_TASK_LOCAL_ID", "PALS_LOCAL_RANKID", "SLURM_LOCALID")
    return next((env[name] for name in names if env.get(name)), "0") == "0"


def number(env, name):
    """The variable `name` as a number from 0. Raises LaunchError."""
    value = env.get(name)
    if value is None:
        fault = f"{name} is not set, but other variables of its launcher are"
        raise LaunchError(fault, "pass all of them on (a container without --cleanenv)")
    if not is_number(value):
        shown = value if len(value) <= MOST_DIGITS else f"{value[:MOST_DIGITS]}..."
        raise LaunchError(f"{name}={shown} is not a number of at most {MOST_DIGITS} digits", STRAY_EXPORT)
    return int(value)


def optional_number(env, name):
    """The same, None if the variable is not set."""
    return number(env, name) if env.get(name) else None


def text_number(text):
    """A number that follows from `text` alone (the hash FNV-1a of 32 bits; Fowler, Noll and Vo); None for no text."""
    value = 0x811C9DC5
    for byte in (text or "").encode():
        value = (value ^ byte) * 0x01000193 % 2**32
    return value if text else None


def make_world(env, names, **fields):
    """The World of a launcher whose variables `names` have the values of OF_TORCH; `fields` are its other fields.

    Raises LaunchError if the numbers, or exported variables of torch, contradict each other.
    """
    names = dict(zip(OF_TORCH, names))
    for name, field in zip(OF_TORCH, NUMBERS):
        if field not in fields:
            fields[field] = number(env, names[name])
    world = World(**fields)
    check_inside(env, names["RANK"], names["WORLD_SIZE"], world.size)
    check_inside(env, names["LOCAL_RANK"], names.get("LOCAL_WORLD_SIZE", names["WORLD_SIZE"]), world.local_size)
    if world.local_size > world.size:
        here = f"{names.get('LOCAL_WORLD_SIZE', 'LOCAL_WORLD_SIZE')}={world.local_size} ranks on this node"
        fault = f"{here} are more than {names['WORLD_SIZE']}={world.size} in the world"
        raise LaunchError(fault, "look for variables of another launch")
    if not world.exported:
        check_exported(env, world, names, f"{world.source} started this process")
    return world


def check_inside(env, index, bound, size):
    """Raise LaunchError unless the variable `index` is below `size`, the meaning of the variable `bound`."""
    if number(env, index) >= size:
        raise LaunchError(f"{index}={env[index]} is outside 0 to {size - 1}, as of {bound}={env[bound]}", STRAY_EXPORT)


def check_exported(env, world, sources, reason):
    """Raise LaunchError if one of torch's variables is exported with another value than `world` has."""
    for name, value in world.variables().items():
        if name == "LOCAL_RANK" and env.get(VIRTUAL):
            continue  # exported by the launch around this one
        if env.get(name, value) not in ("", value):
            because = f"{sources[name]}={env[sources[name]]}" if name in sources else reason
            remedy = "" if sources else ", or, as a rank of another launcher, use conda-python-simple"
            raise LaunchError(f"{name}={env[name]} is exported, but {because}", f"unset {name}{remedy}")


def is_inherited(env, name):
    """Whether the task or the script of this job had the variable `name` when it started, so no launcher in it set it.

    None where that is not known: outside a job, and in a container that hides the process of the task or script. As the
    next launch may have the same run id (torchrun's default is `none`), each worker's file for errors counts as well.
    """
    if not in_job(env):
        return None
    from pytorch_launch.topology import STARTERS  # which is for hardware

    slurms = task = env.get("SLURM_TASK_PID")
    child, starter = None, None
    for pid, program in ancestors():
        if program in STARTERS and not starter:
            starter = program  # it sets its own variables, and passes on those of torchrun and of other launchers
            is_open_mpi = program not in ("hydra_pmi_proxy", "palsd")
            if name != "TORCHELASTIC_RUN_ID" and is_open_mpi == name.startswith(("OMPI_", "PMIX_")):
                return False
        if program.rstrip("-0123456789") in DAEMONS:
            task = task or child
            break
        child = pid
    variables = (read(f"/proc/{task}/environ") or "").split("\0") if task else [""]
    if variables == [""] or (slurms and f"SLURM_TASK_PID={slurms}" not in variables):
        return None
    return all(f"{each}={env[each]}" in variables for each in (name, "TORCHELASTIC_ERROR_FILE") if env.get(each))


def check_step(env, world, sign):
    """Raise LaunchError if `world`, of torchrun or mpirun, has fewer ranks than the Slurm step around it has tasks.

    Then srun has started this process, and the other variables, such as `sign`, are left from a launch around srun. A
    step with one task on each node proves nothing: mpirun's daemons are such a step, also on nodes without ranks. In
    one task of a step, as in a shell of `srun --pty`, these launchers may start fewer ranks.
    """
    tasks, nodes = (optional_number(env, f"SLURM_STEP_NUM_{what}") for what in ("TASKS", "NODES"))
    if tasks is not None and tasks != nodes and world.size < tasks and is_inherited(env, sign) is None:
        fault = f"{world.source} has WORLD_SIZE={world.size}, but SLURM_STEP_NUM_TASKS={tasks}"
        remedy = "the variables of the launch around srun, such as TORCHELASTIC_RUN_ID or OMPI_COMM_WORLD_RANK"
        raise LaunchError(fault, f"unset {remedy}")
