# SPDX-License-Identifier: BSD-3-Clause
"""The launcher that started this process, and the world that it reports.

Only this folder knows the variables of launchers: a function for each, which takes the environment and the host's name
and returns a World, or None if it did not start this process.
"""

from pytorch_launch import LaunchError, Problem, is_number, read
from pytorch_launch.active import check_cleaned
from pytorch_launch.nodelist import NAME_CHARACTERS
from pytorch_launch.world import (
    LAUNCH_ID,
    NODE_LISTS,
    NUMBERS,
    OF_TORCH,
    SUBMIT,
    World,
    check_exported,
    is_inherited,
    node_name,
    optional_number,
    read_list,
)

# For each launcher: a variable that only it sets; its module and function; what gives ranks more cores; what starts one
# task per node; and how to pass a variable on to all ranks. The first row whose variable is set counts: torchrun starts
# more ranks than the task that it runs in; the daemons that mpirun starts on other nodes are a Slurm step, whose
# variables its ranks inherit; a Flux instance may run in a Slurm step, and `flux run` passes on the environment of its
# shell; srun offers PMI beside its own variables, and Flux offers PMI, and PALS for Cray's PMI. The workers of torchrun
# have the cores of their agent, whose variables they inherit.
SLURM = "SLURM_STEP_ID"
LAUNCHERS = (
    ("TORCHELASTIC_RUN_ID", "mpi.torchrun"),
    (
        *("OMPI_COMM_WORLD_RANK", "mpi.open_mpi", "start mpirun with --bind-to none"),
        *("mpirun --map-by ppr:1:node --bind-to none", "with mpirun -x"),
    ),
    (
        *("MPI_LOCALRANKID", "mpi.hydra", "start mpirun with -bind-to none, Intel MPI's with I_MPI_PIN=0"),
        *("mpirun -ppn 1 -bind-to none", "with mpiexec -genv"),
    ),
    (
        *("FLUX_TASK_RANK", "flux.task", "start flux run with -o cpu-affinity=off, at LLNL with -o mpibind=off"),
        *("flux run --tasks-per-node=1 -o cpu-affinity=off", "before flux run"),
    ),
    (
        *(
            SLURM,
            "slurm.step",
            "give each rank its own cores with srun -c <cores>, or all of the job's with --cpu-bind=none",
        ),
        # in a job with more tasks, srun ignores --ntasks-per-node
        *("srun -N{SLURM_STEP_NUM_NODES} -n{SLURM_STEP_NUM_NODES}", "before srun"),
    ),
    (
        *("PALS_RANKID", "mpi.pals", "start mpiexec with --cpu-bind none"),
        *("mpiexec --ppn 1 --cpu-bind none", "with mpiexec --env"),
    ),
    ("PMI_LOCAL_RANK", "mpi.pmi"),
)
OTHER_OPTIONS = ("give this process more cores, with taskset or in its container", "mpirun -ppn 1", "on all ranks")
MORE_CORES, ONE_PER_NODE, TO_ALL_RANKS = range(3)


def discover(env, hostname, known=()):
    """The World of the process with environment `env` on `hostname`. Raises LaunchError.

    Variables of another launcher that begin with one of `known` do not matter, as what this process becomes reads them.
    """
    inherited = next((name for name in ("TORCHELASTIC_RUN_ID", LAUNCH_ID) if _is_of_another_step(env, name)), None)
    for sign, name, *_ in LAUNCHERS:
        if not env.get(sign):
            continue
        if sign != SLURM and (sign == inherited or is_inherited(env, sign)):
            inherited = inherited or sign
            continue
        checked = {**env, **dict.fromkeys(OF_TORCH, "")} if inherited else env
        module, _, function = name.partition(".")
        # imported here, so that a rank pays only for the launcher that started it
        world = getattr(__import__(f"{__name__}.{module}", fromlist=[function]), function)(checked, hostname)
        if world is None:
            continue
        if inherited:
            raise LaunchError(f"{inherited}={env[inherited]} is of another launch than {world.source}", SUBMIT)
        return world
    return single(env, hostname, inherited, known)


def _is_of_another_step(env, name):
    """Whether the variable `name` has the form `<job>.<step>` of this package, and is not of this job or step."""
    job, _, step = env.get(name, "").partition(".")
    if not (job.isdecimal() and step.isdecimal()):
        return False
    # Slurm 26.05 calls the step of salloc's shell -6
    current = env.get("SLURM_STEP_ID", step).replace("-6", "4294967290")
    return env.get("SLURM_JOB_ID", job) not in ("", job) or current not in ("", step)


# Beginnings and ends of variables with which launchers describe a rank: those of this package that come in part, and
# MVAPICH's mpirun_rsh, IBM's jsrun, ALPS's aprun, PMIx's prun, horovodrun, HTCondor, submitit's executor on one host.
MARKS = (
    *("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "MPI_LOCAL", "PMI_", "PMIX_RANK", "PALS_", "FLUX_TASK_", "MV2_COMM_WORLD_"),
    *("JSM_NAMESPACE_", "ALPS_APP_PE", "HOROVOD_", "MPI_RANKID", "MPI_NRANKS", "MPIRUN_", "SMPI_"),
    *("_CONDOR_PROCNO", "_CONDOR_NPROCS", "SUBMITIT_LOCAL_"),
)
SIZES = ("SIZE", "NTASKS", "NPROCS")
OF_RANK = (*SIZES, "RANK", "RANKS", "RANKID", "RANK_ID", "_PE", "LOCAL_ID", "PMI_ID", "PROCNO", "GLOBALID")
# The numbers of the tasks of srun (which passes more variables), pbsdsh, LSF's blaunch and the nodes below; and that of
# the first, which looks like the job's script. A Kubernetes job's JOB_COMPLETION_INDEX is that of an array: nothing
# says whether its pods are a world, or how many there are.
TASK_NUMBERS = {
    **{"PBS_NODENUM": "0", "PBS_TASKNUM": "1", "LSF_PM_TASKID": "1", "AWS_BATCH_JOB_NODE_INDEX": "0"},
    **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), "0"),
    **dict.fromkeys(("VC_TASK_INDEX", "VK_TASK_INDEX", "PET_NODE_RANK"), "0"),
}
# Beginnings and ends of variables with the number of nodes or processes, or a list of them; of one row they add up:
# Kubeflow (torchrun(1) reads them), AWS Batch (user guide, "Multi-node parallel jobs"), SageMaker (its toolkit,
# ENVIRONMENT_VARIABLES.md), Volcano (its plugin `svc`, a number for each task of the job), SkyPilot ("Distributed
# Multi-Node Jobs"), dstack ("Distributed tasks"), Azure Machine Learning.
COUNTS = (
    *(("PET_", "NNODES"), ("PET_", "NPROC_PER_NODE"), ("AWS_BATCH_JOB_", "NUM_NODES"), ("SM_", "HOSTS")),
    *(("VC_", "_NUM"), ("SKYPILOT_", "NUM_NODES"), ("DSTACK_", "NODES_NUM"), ("AZUREML_", "NODE_COUNT")),
)
OF_NODES = ("PET_", "AWS_BATCH_", "SM_", "VC_", "VK_", "SKYPILOT_", "DSTACK_", "AZUREML_")

OF_TORCHRUN = ("GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE")


def single(env, hostname, inherited=None, known=()):
    """A world of one. A batch script is such a process, with the SLURM_PROCID=0 of its job.

    `inherited` is a variable of a launch around this job, None if there is none.
    """
    from pytorch_launch.launchers import slurm  # most launches need one launcher only

    check_cleaned(env)
    marks = sorted(name for name in env if _is_of_rank(name, env))
    if {env[name] for name in marks if name.endswith(SIZES) and "LOCAL_SIZE" not in name} == {"1"}:
        marks = [name for name in marks if name in TASK_NUMBERS]  # the only rank
    for start, end in COUNTS if "SLURM_PROCID" in env else (*COUNTS, ("SLURM_STEP_NUM_", "TASKS")):
        of_row = [name for name in env if name.startswith(start) and name.endswith(end)]
        if end == "NPROC_PER_NODE" and "PET_NODE_RANK" not in env:
            continue  # no pod of Kubeflow: exported for a torchrun that this script starts
        marks += of_row if sum(_count(env[name]) for name in of_row) > 1 else []
    marks = [name for name in marks if not name.startswith(known)]
    of_launch = [name for name in marks if name not in TASK_NUMBERS]
    inherited = inherited or next((name for name in of_launch if is_inherited(env, name)), None)
    if of_launch != marks or (marks and not inherited):
        fault = f"{', '.join(f'{name}={env[name]}' for name in marks)}: ranks of a launcher that is not known"
        remedy = "start them with srun, mpirun, flux run or torchrun, and pass its variables on (a container without "
        raise LaunchError(fault, f"{remedy}--cleanenv), or start one process with conda-python-simple")
    tasks, strays, problem = "SLURM_STEP_NUM_TASKS", (), None
    left = inherited or (tasks if slurm.has_marks(env) and env[tasks] != "1" else None)
    if left:
        problem = Problem(f"{left}={env[left]} is of a launch around this job: starting one process", SUBMIT)
    if inherited:
        of_torchrun = (name for name in env if name.startswith("TORCHELASTIC_"))
        strays = {*marks, *of_torchrun, *OF_TORCH, *OF_TORCHRUN, "MASTER_ADDR", "MASTER_PORT", LAUNCH_ID}
        env = {name: value for name, value in env.items() if name not in strays}
    world = World(
        **dict(zip(NUMBERS, (0, 1, 0, 1, 0))),
        node=node_name(env, hostname),
        first_host="127.0.0.1",
        source="single process",
        job=optional_number(env, "SLURM_JOB_ID"),
        allocation=slurm.job_allocation(env) if env.get("SLURM_JOB_ID") else _allocation(env),
        strays=tuple(sorted(strays)),
        problem=problem,
    )
    if len(known) < 2:  # else the user says where the nodes of torchrun meet, which reads none of these
        check_exported(env, world, {}, "no srun, mpirun or torchrun started this process")
    return world


def _count(text):
    """The number in `2`, `1:2`, `a,b` or `["a", "b"]`; 1 for another text, such as `auto`."""
    most = text.rpartition(":")[2]
    return int(most) if is_number(most) else text.count(",") + 1


def _is_of_rank(name, env):
    """Whether the variable `name` is one with which a launcher describes a rank."""
    if name in TASK_NUMBERS:
        return env[name] not in ("", TASK_NUMBERS[name])
    return name.startswith(MARKS) and name.endswith(OF_RANK) and env[name].isdecimal()


def _allocation(env):
    """Tasks and nodes of the job, 1 and 1 where they are not known, and what starts processes on all of them."""
    if env.get("FLUX_URI"):
        from pytorch_launch.launchers.flux import flux

        nodes = (flux(env, "getattr", "size") or "").strip()
        return 1, int(nodes) if nodes.isdecimal() else 1, "flux run"
    if env.get("PBS_NODEFILE"):
        return 1, len(set((read(env["PBS_NODEFILE"]) or "").split())) or 1, "mpiexec"
    # LSF: `host1 4 host2 4`, with a host for the script itself where jsrun starts the tasks
    return 1, len(env.get("LSB_MCPU_HOSTS", "").split()) // 2 or 1, "mpirun"


def is_node_of_job(env, host):
    short = host.partition(".")[0]
    return any(short in read_list(env, name) for name in NODE_LISTS if env.get(name))


def launcher_option(env, which):
    """What to do with the launcher of this process, by the options of its row."""
    options = next((options for sign, _, *options in LAUNCHERS if options and env.get(sign)), OTHER_OPTIONS)
    return options[which].format_map({"SLURM_STEP_NUM_NODES": "<nodes>", **env})


def launch_name(env, world, launch, place):
    """The name for `world`, of letters that every file system has.

    `place` and `launch` are what `choose_rendezvous` returned; both are None for workers of torchrun,
    which share its run id, and a port that is another one after each restart. A job that Slurm requeues keeps its
    number, and counts its restarts in SLURM_RESTART_COUNT (sbatch(1), "OUTPUT ENVIRONMENT VARIABLES").
    """
    name = f"{env['TORCHELASTIC_RUN_ID']}.{env.get('MASTER_PORT', '')}" if world.exported else launch
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
