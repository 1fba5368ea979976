# SPDX-License-Identifier: BSD-3-Clause
"""The launcher that started this process, and the world that it reports.

Only this folder knows the variables of launchers: a function for each, which takes the environment and the host's name
and returns a World, or None if it did not start this process.
"""

from pytorch_launch import LaunchError, Value, is_number
from pytorch_launch.environment import LAUNCH_ID
from pytorch_launch.nodelist import NAME_CHARACTERS, node_index
from pytorch_launch.world import NODE_LISTS, OF_TORCH, SUBMIT, WorldError, is_inherited

# A variable that only this launcher sets, then its module and function. The first match takes precedence:
# torchrun starts more ranks than the task that it runs in; the daemons that mpirun starts on other nodes
# are a Slurm step, whose variables its ranks inherit; a Flux instance may run in a Slurm step, and `flux run` passes on
# the environment of its shell; srun offers PMI beside its own variables, and Flux offers PMI, and PALS for Cray's PMI.
SLURM = "SLURM_PROCID"
LAUNCHERS = (
    ("TORCHELASTIC_RUN_ID", "others", "torchrun"),
    ("OMPI_COMM_WORLD_RANK", "mpi", "open_mpi"),
    ("MPI_LOCALRANKID", "mpi", "hydra"),
    ("FLUX_TASK_RANK", "flux", "task"),
    (SLURM, "slurm", "step"),
    ("PALS_RANKID", "mpi", "pals"),
    ("PMI_LOCAL_RANK", "mpi", "pmi"),
)


def discover(env, hostname):
    """The World of the process with environment `env` on `hostname`. Raises WorldError."""
    inherited = next((name for name in ("TORCHELASTIC_RUN_ID", LAUNCH_ID) if _is_of_another_step(env, name)), None)
    for sign, module, function in LAUNCHERS:
        if not env.get(sign):
            continue
        if sign != SLURM and (sign == inherited or is_inherited(env, sign)):
            inherited = inherited or sign
            continue
        checked = {**env, **dict.fromkeys(OF_TORCH, "")} if inherited else env
        # imported here, so that a rank pays only for the launcher that started it
        world = getattr(__import__(f"{__name__}.{module}", fromlist=[function]), function)(checked, hostname)
        if world is None:
            continue
        if inherited:
            raise WorldError(f"{inherited}={env[inherited]} is of another launch than {world.source}", SUBMIT)
        return world
    from pytorch_launch.launchers.others import single

    return single(env, hostname, inherited)


def _is_of_another_step(env, name):
    """Whether the variable `name` has the form `<job>.<step>` of this package, and is not of this job or step."""
    job, _, step = env.get(name, "").partition(".")
    if not (job.isdecimal() and step.isdecimal()):
        return False
    return env.get("SLURM_JOB_ID", job) not in ("", job) or env.get("SLURM_STEP_ID", step) not in ("", step)


def is_node_of_job(env, host):
    short = host.partition(".")[0]
    try:
        return any(node_index(env[name], short) is not None for name in NODE_LISTS if env.get(name))
    except LaunchError:  # a list that cannot be parsed, and that this launch does not use
        return False


#: For a variable of a launcher: the options that leave ranks unbound, the command that starts one task per node, and
#: the option that passes a variable on to all ranks.
OPTIONS = {
    "OMPI_COMM_WORLD_RANK": (
        "start mpirun with --bind-to none",
        "mpirun --map-by ppr:1:node --bind-to none",
        "with mpirun -x",
    ),
    "MPI_LOCALRANKID": (
        "start mpirun with -bind-to none, Intel MPI's with I_MPI_PIN=0",
        "mpirun -ppn 1 -bind-to none",
        "with mpiexec -genv",
    ),
    "FLUX_TASK_RANK": (
        "start flux run with -o cpu-affinity=off, at LLNL with -o mpibind=off",
        "flux run --tasks-per-node=1 -o cpu-affinity=off",
        "before flux run",
    ),
    "PALS_RANKID": ("start mpiexec with --cpu-bind none", "mpiexec --ppn 1 --cpu-bind none", "with mpiexec --env"),
    "SLURM_STEP_ID": (
        "give each rank its own cores with srun -c <cores>, or all of the job's with --cpu-bind=none",
        # in a job with more tasks, srun ignores --ntasks-per-node
        "srun -N{SLURM_STEP_NUM_NODES} -n{SLURM_STEP_NUM_NODES}",
        "before srun",
    ),
}


def more_cores(env):
    """How to give ranks more cores, with the options of the launcher that bound them.

    The workers of torchrun have the cores of their agent, whose variables they inherit.
    """
    return _options(env, 0) or "give this process more cores, with taskset or in its container"


def one_task_per_node(env):
    return (_options(env, 1) or "mpirun -ppn 1").format_map({"SLURM_STEP_NUM_NODES": "<nodes>", **env})


def to_all_ranks(env):
    return _options(env, 2) or "on all ranks"


def _options(env, index):
    return next((options[index] for sign, options in OPTIONS.items() if env.get(sign)), None)


def launch_name(env, world, launch, place):
    """The name for `world`, of letters that every file system has.

    `launch` is what `launch_id` returned, `place` what `choose_rendezvous` did; both are None for workers of torchrun,
    which share its run id. A job that Slurm requeues keeps its number, and counts its restarts in SLURM_RESTART_COUNT
    (sbatch(1), "OUTPUT ENVIRONMENT VARIABLES").
    """
    name = env.get("TORCHELASTIC_RUN_ID") if world.exported else launch
    if not name:
        # ranks that share only their rendezvous, which was exported
        name = f"{place['MASTER_ADDR']}-{place['MASTER_PORT']}"
    elif world.step is None and name.partition(".")[0] in ("local", "none"):
        # numbers of processes and torchrun's default repeat on other nodes
        host = world.node if world.local_size == world.size else world.first_host
        name = f"{'local' if world.job is None else world.job}.{host}.{name.rpartition('.')[2]}"
    if env.get("SLURM_RESTART_COUNT", "0") != "0":
        name = f"{name}-restart{env['SLURM_RESTART_COUNT']}"
    return "".join(letter if letter in NAME_CHARACTERS else "_" for letter in name).lstrip(".")[:200] or "launch"


class StepGpus(Value):
    """What Slurm reports about the GPUs of this task on this node.

    `numbers`       on the node, whatever a device cgroup hides; None if not reported. A task to which
                    --gpus-per-task or --gpu-bind gives fewer than the step has sees its own here.
    `count`         number of GPUs of all tasks of the step here, None if not reported
    `is_torchruns`  true if Slurm gave them to torchrun, whose workers share them

    (srun(1), "OUTPUT ENVIRONMENT VARIABLES"; gres_common.c; seen with 22.05.) srun passes none of its options on.
    """

    __slots__ = ("count", "is_torchruns", "numbers")


def step_gpus(env):
    numbers = env.get("SLURM_STEP_GPUS")
    if numbers is None and env.get("SLURM_STEP_ID", "") in ("", "-5"):  # a batch script has -5 with Slurm 26.05
        # of the batch script's node, though all steps inherit it
        numbers = env.get("SLURM_JOB_GPUS")
    entries = (numbers or "").split(",")
    count = env.get("SLURM_GPUS_ON_NODE", "")
    return StepGpus(
        numbers=[int(entry) for entry in entries] if all(map(is_number, entries)) else None,
        count=int(count) if is_number(count) else None,
        is_torchruns=bool(env.get("TORCHELASTIC_RUN_ID")),
    )
