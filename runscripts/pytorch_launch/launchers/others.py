# SPDX-License-Identifier: BSD-3-Clause
"""The worlds of torchrun, and of a process that no launcher started."""

from pytorch_launch import Problem, read
from pytorch_launch.container import check_cleaned
from pytorch_launch.environment import LAUNCH_ID
from pytorch_launch.launchers.slurm import STEP_MARKS, job_allocation, step_of_others
from pytorch_launch.world import (
    NUMBERS,
    OF_TORCH,
    SUBMIT,
    World,
    WorldError,
    check_exported,
    check_step,
    is_inherited,
    make_world,
    node_name,
    optional_number,
)

# Beginnings and ends of variables with which launchers describe a rank: those of this package that come in part, and
# MVAPICH's mpirun_rsh, IBM's jsrun, ALPS's aprun, PMIx's prun, horovodrun.
LAUNCHERS = (
    *("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "MPI_LOCAL", "PMI_", "PMIX_RANK", "PALS_", "FLUX_TASK_", "MV2_COMM_WORLD_"),
    *("JSM_NAMESPACE_", "ALPS_APP_PE", "HOROVOD_", "MPI_RANKID", "MPI_NRANKS", "MPIRUN_", "SMPI_"),
)
OF_RANK = ("RANK", "RANKS", "RANKID", "RANK_ID", "SIZE", "_PE", "LOCAL_ID", "PMI_ID")

OF_TORCHRUN = ("GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE")


def torchrun(env, hostname):
    """The world of a worker (torch.distributed.run, "Environment Variables"), as torchrun exported it."""
    world = make_world(
        env,
        OF_TORCH,
        node=node_name(env, hostname),
        first_host=env.get("MASTER_ADDR"),
        source=f"torchrun run {env['TORCHELASTIC_RUN_ID']}",
        job=optional_number(env, "SLURM_JOB_ID"),
        exported=True,
    )
    check_step(env, world, "TORCHELASTIC_RUN_ID")
    return world


def single(env, hostname, inherited=None):
    """A world of one. A batch script is such a process, with the SLURM_PROCID=0 of its job.

    `inherited` is a variable of a launch around this job, None if there is none.
    """
    check_cleaned(env)
    if env.get("SLURM_PROCID", "0") != "0":
        raise WorldError(
            f"SLURM_PROCID={env['SLURM_PROCID']} is a rank, but one of {', '.join(STEP_MARKS)} and "
            "SLURM_STEP_ID is missing",
            "pass Slurm's variables on (a container without --cleanenv)",
        )
    marks = sorted(name for name in env if _is_of_rank(name, env))
    if {env[name] for name in marks if name.endswith("SIZE") and "LOCAL" not in name} == {"1"}:
        marks = []  # the only rank
    inherited = inherited or next((name for name in marks if is_inherited(env, name)), None)
    strays, left = (), step_of_others(env)
    if inherited:
        left = f"{inherited}={env[inherited]}"
        of_torchrun = (name for name in env if name.startswith("TORCHELASTIC_"))
        strays = {*marks, *of_torchrun, *OF_TORCH, *OF_TORCHRUN, "MASTER_ADDR", "MASTER_PORT", LAUNCH_ID}
        env = {name: value for name, value in env.items() if name not in strays}
    elif marks:
        raise WorldError(
            f"{', '.join(f'{name}={env[name]}' for name in marks)}: ranks of a launcher that is not known",
            "start them with srun, mpirun, flux run or torchrun, or one process with conda-python-simple",
        )
    world = World(
        **dict(zip(NUMBERS, (0, 1, 0, 1, 0))),
        node=node_name(env, hostname),
        first_host="127.0.0.1",
        source="single process",
        job=optional_number(env, "SLURM_JOB_ID"),
        allocation=_allocation(env),
        strays=tuple(sorted(strays)),
        problem=Problem(f"{left} is of a launch around this job: starting one process", SUBMIT) if left else None,
    )
    check_exported(env, world, {}, "no srun, mpirun or torchrun started this process")
    return world


def _is_of_rank(name, env):
    """Whether the variable `name` is one with which a launcher describes a rank; `pbsdsh` numbers its tasks."""
    if name == "PBS_NODENUM":
        return env[name] not in ("", "0")
    if name == "PBS_TASKNUM":
        return env[name] not in ("", "1")
    return name.startswith(LAUNCHERS) and name.endswith(OF_RANK) and env[name].isdecimal()


def _allocation(env):
    """Tasks and nodes of the job, 1 and 1 where they are not known, and what starts processes on all of them."""
    if env.get("SLURM_JOB_ID"):
        return job_allocation(env)
    if env.get("FLUX_URI"):
        from pytorch_launch.facts import output_of

        nodes = (output_of("flux", ["getattr", "size"], env) or "").strip()
        return 1, int(nodes) if nodes.isdecimal() else 1, "flux run"
    if env.get("PBS_NODEFILE"):
        return 1, len(set((read(env["PBS_NODEFILE"]) or "").split())) or 1, "mpiexec"
    # LSF: `host1 4 host2 4`, with a host for the script itself where jsrun starts the tasks
    return 1, len(env.get("LSB_MCPU_HOSTS", "").split()) // 2 or 1, "mpirun"
