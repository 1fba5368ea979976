# SPDX-License-Identifier: BSD-3-Clause
"""A process that no launcher started, such as a batch script; and ranks of launchers that are not known, an error."""

from pytorch_launch import LaunchError, Problem, is_number, read
from pytorch_launch.container import check_cleaned
from pytorch_launch.launchers import ALONE, in_job, node_name, programs
from pytorch_launch.launchers.inherited import SUBMIT, is_inherited
from pytorch_launch.launchers.slurm import has_marks, job_allocation
from pytorch_launch.launchers.variables import fields_of_slurm, optional_number
from pytorch_launch.world import LAUNCH_ID, OF_TORCH, ONE_TASK, World, check_exported

# Beginnings and ends of variables with which launchers describe a rank: those of this package that come in part, and
# MVAPICH's mpirun_rsh, IBM's jsrun, ALPS's aprun, PMIx's prun, horovodrun, HTCondor, submitit's executor on one host.
MARKS = (
    "OMPI_COMM_WORLD_",
    "OMPI_UNIVERSE_",
    "MPI_LOCAL",
    "PMI_",
    "PMIX_RANK",
    "PALS_",
    "FLUX_TASK_",
    "MV2_COMM_WORLD_",
    "JSM_NAMESPACE_",
    "ALPS_APP_PE",
    "HOROVOD_",
    "MPI_RANKID",
    "MPI_NRANKS",
    "MPIRUN_",
    "SMPI_",
    "_CONDOR_PROCNO",
    "_CONDOR_NPROCS",
    "SUBMITIT_LOCAL_",
)
SIZES = ("SIZE", "NTASKS", "NPROCS")
OF_RANK = (*SIZES, "RANK", "RANKS", "RANKID", "RANK_ID", "_PE", "LOCAL_ID", "PMI_ID", "PROCNO", "GLOBALID")

# The numbers of the tasks of srun (which passes more variables), pbsdsh and LSF's blaunch; and that of the first, which
# looks like the job's script.
TASK_NUMBERS = {
    "PBS_NODENUM": "0",
    "PBS_TASKNUM": "1",
    "LSF_PM_TASKID": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}

# Beginnings of the variables of clouds, and ends of those with the number of nodes: Kubeflow (torchrun(1) reads these),
# AWS Batch, SkyPilot, dstack, Azure Machine Learning, Volcano (VC_WORKER_NUM).
CLOUDS = ("PET_", "AWS_BATCH_", "SKYPILOT_", "DSTACK_", "AZUREML_", "VC_")
NODE_COUNTS = ("NNODES", "NUM_NODES", "NODE_COUNT", "_NUM")

# Variables that torchrun sets beside those of torch.
ROLES = ("GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE")


def process(env, hostname, inherited=None):
    """A world of one. A batch script is such a process, with the SLURM_PROCID=0 of its job.

    `inherited` is a variable of a launch around this job, None if there is none. Raises LaunchError for a rank of a
    launcher that is not known.
    """
    check_cleaned(env, in_job(env), programs())
    marks = _marks_of_rank(env)
    marks += [name for name in env if _is_of_cloud(name, env[name])]
    if inherited is None:
        inherited = _first_inherited(env, marks)
    # a launch around this job explains its variables, not the number of a task
    if marks and (inherited is None or set(marks) & set(TASK_NUMBERS)):
        raise _unknown(env, marks)
    problems = _left_over(env, inherited)
    strays = ()
    if inherited:
        strays = _strays(env, marks)
        env = {name: value for name, value in env.items() if name not in strays}
    world = World(
        rank=0,
        size=1,
        local_rank=0,
        local_size=1,
        node_rank=0,
        node=node_name(env, hostname),
        first_host="127.0.0.1",
        source=ALONE.name,
        launcher=ALONE,
        job=optional_number(env, "SLURM_JOB_ID"),
        allocation=_job(env),
        strays=strays,
        problems=problems,
        **fields_of_slurm(env),
    )
    check_exported(env, world, {}, "no srun, mpirun or torchrun started this process")
    return world


def _first_inherited(env, marks):
    """The first of the variables `marks` that a launch around this job has set, None without one."""
    for name in marks:
        if name not in TASK_NUMBERS and is_inherited(env, name):
            return name
    return None


def _marks_of_rank(env):
    """The variables by which a launcher describes a rank of several, sorted."""
    marks = sorted(name for name in env if _is_of_rank(name, env))
    if _is_only_rank(env, marks):
        marks = [name for name in marks if name in TASK_NUMBERS]
    if "SLURM_PROCID" not in env and env.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        marks.append("SLURM_STEP_NUM_TASKS")
    return marks


def _is_only_rank(env, marks):
    sizes = {env[name] for name in marks if name.endswith(SIZES) and "LOCAL_SIZE" not in name}
    return sizes == {"1"}


def _is_of_rank(name, env):
    if name in TASK_NUMBERS:
        return env[name] not in ("", TASK_NUMBERS[name])
    return name.startswith(MARKS) and name.endswith(OF_RANK) and env[name].isdecimal()


def _is_of_cloud(name, value):
    """Whether a variable is the number of several nodes of a cloud; torchrun's may be a range, as `1:4`."""
    most = value.rpartition(":")[2]
    return name.startswith(CLOUDS) and name.endswith(NODE_COUNTS) and is_number(most) and int(most) > 1


def _unknown(env, marks):
    """The error for ranks of a launcher that is not known, with the variables `marks`."""
    fault = f"{', '.join(f'{name}={env[name]}' for name in marks)}: ranks of a launcher that is not known"
    remedy = "start them with srun, mpirun, flux run or torchrun, and pass its variables on (a container without "
    return LaunchError(fault, f"{remedy}--cleanenv), or start one process with conda-python-simple")


def _strays(env, marks):
    """The names of the variables of a launch around this job, sorted."""
    of_torchrun = [name for name in env if name.startswith("TORCHELASTIC_")]
    return tuple(sorted({*marks, *of_torchrun, *OF_TORCH, *ROLES, "MASTER_ADDR", "MASTER_PORT", LAUNCH_ID}))


def _left_over(env, inherited):
    """Problems: one for variables of a launch around this job."""
    left = inherited
    if left is None and has_marks(env) and env["SLURM_STEP_NUM_TASKS"] != "1":
        left = "SLURM_STEP_NUM_TASKS"
    if left is None:
        return []
    return [Problem(f"{left}={env[left]} is of a launch around this job: starting one process", SUBMIT)]


def _job(env):
    """The Allocation of the job, one task on one node where it is not known."""
    if env.get("SLURM_JOB_ID"):
        return job_allocation(env)
    if env.get("FLUX_URI"):
        from pytorch_launch.launchers.flux import flux

        size = flux(env, "getattr", "size").strip()
        return _nodes(int(size or 1), "flux run")
    if env.get("PBS_NODEFILE"):
        return _nodes(len(set((read(env["PBS_NODEFILE"]) or "").split())), "mpiexec")
    # LSF: `host1 4 host2 4`, with a host for the script itself where jsrun starts the tasks
    return _nodes(len(env.get("LSB_MCPU_HOSTS", "").split()) // 2, "mpirun")


def _nodes(nodes, command):
    """The Allocation of one task on `nodes` nodes, 0 if that is not known."""
    return ONE_TASK._replace(nodes=max(1, nodes), command=command)
