# SPDX-License-Identifier: BSD-3-Clause
"""The variables of an allocation, for commands that start steps in it: pytorch-run, pytorch-stage, pytorch-stacks."""

from collections import namedtuple

from pytorch_launch import LaunchError

#: Variables that describe a job or a step, or select rows: Slurm's commands would obey them.
OF_SLURM = ("SLURM_", "SLURMD_", "SRUN_", "SQUEUE_", "SINFO_")
#: Those that srun(1) reads as --ntasks; and those of a step around a command, by their first letters.
SIZES = ("SLURM_NTASKS", "SLURM_NPROCS")
OF_STEP = ("SLURM_STEP", "SLURM_CPU_BIND", "SLURM_MEM_BIND")
OF_STEP_AND_JOB = (*SIZES, "SLURM_NNODES", "SLURM_DISTRIBUTION")
#: A step with one task on each node, beside others.
BESIDE_STEP = "--overlap --ntasks-per-node=1 --cpu-bind=none --mpi=none --kill-on-bad-exit=0"
#: Names of files that srun writes, as with --output and --error.
SRUN_FILES = ("SLURM_STDOUTMODE", "SLURM_STDERRMODE")

#: A job of Slurm.
#:
#: `job`         its number
#: `nodes`       the number of its nodes, and `tasks` that of its tasks, 0 if not known
#: `is_in_step`  whether this process is in a step of it, and not in its script or shell
Allocation = namedtuple("Allocation", "job nodes tasks is_in_step")

JobOfRank = namedtuple("JobOfRank", "job step node")


def slurm_allocation(env):
    """The Allocation around this process. Raises LaunchError without one, and in a heterogeneous job."""
    job = env.get("SLURM_JOB_ID")
    if not job:
        remedy = "run it in `salloc --no-kill`, or in a batch script with #SBATCH --no-kill"
        raise LaunchError("not in an allocation of Slurm: SLURM_JOB_ID is not set", remedy)
    if env.get("SLURM_HET_SIZE"):
        raise LaunchError(f"job {job} is heterogeneous", "use srun alone, or submit a job of one component")
    # batch scripts and salloc's shell have the job's variables, and the largest or negative numbers as steps
    step = env.get("SLURM_STEP_ID", "")
    return Allocation(
        job=job,
        nodes=int(env.get("SLURM_JOB_NUM_NODES") or 0),
        tasks=int(env.get("SLURM_NTASKS") or 0),
        is_in_step=step.isdecimal() and len(step) < 10,
    )


def on_nodes(nodes):
    """The options of srun for these nodes."""
    return [f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}"]


def beside_step(job, nodes):
    """The options of srun for a task on each of these nodes of a job, beside its steps."""
    return [f"--jobid={job}", *on_nodes(nodes), f"--ntasks={len(nodes)}", *BESIDE_STEP.split()]


def outside_of_jobs(env):
    """The environment without the variables of Slurm that describe a job or a step around this command."""
    return {name: env[name] for name in env if name == "SLURM_CONF" or not name.startswith(OF_SLURM)}


def outside_of_step(env, allocation):
    """The environment for a new step, whose number of tasks srun is told."""
    if allocation.is_in_step:
        return {name: env[name] for name in env if not name.startswith(OF_STEP) and name not in OF_STEP_AND_JOB}
    return {name: env[name] for name in env if name not in SIZES}


def job_of_rank(env):
    """The job, the step and the node in the variables of a rank; None for what they do not have."""
    return JobOfRank(env.get("SLURM_JOB_ID"), env.get("SLURM_STEP_ID"), env.get("SLURMD_NODENAME"))
