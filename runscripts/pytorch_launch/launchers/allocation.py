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
#: Names of files that srun writes, as with --output and --error.
SRUN_FILES = ("SLURM_STDOUTMODE", "SLURM_STDERRMODE")

#: A job of Slurm, or one component of a heterogeneous job.
#:
#: `job`         its number, and `where` the options of srun that name it
#: `nodes`       the number of its nodes, and `tasks` that of its tasks, 0 if not known
#: `is_in_step`  whether this process is in a step of it, and not in its script or shell
Allocation = namedtuple("Allocation", "job where nodes tasks is_in_step")

JobOfRank = namedtuple("JobOfRank", "job step node")


def slurm_allocation(env, component):
    """The Allocation around this process; `component` is a heterogeneous job's. Raises LaunchError without one."""
    suffix = ""
    if env.get("SLURM_HET_SIZE"):
        suffix = f"_HET_GROUP_{component}"
    job = env.get("SLURM_JOB_ID" + suffix)
    if not job:
        remedy = "run it in `salloc --no-kill`, or in a batch script with #SBATCH --no-kill"
        if suffix:
            remedy = "name one component of the job: --het-group=0"
        raise LaunchError(f"not in an allocation of Slurm: SLURM_JOB_ID{suffix} is not set", remedy)
    where = [f"--jobid={env['SLURM_JOB_ID']}"]
    if suffix:
        where.append(f"--het-group={component}")
    # batch scripts and salloc's shell have the job's variables, and the largest or negative numbers as steps
    step = env.get("SLURM_STEP_ID", "")
    return Allocation(
        job=job,
        where=where,
        nodes=int(env.get("SLURM_JOB_NUM_NODES" + suffix) or 0),
        tasks=int(env.get("SLURM_NTASKS" + suffix) or 0),
        is_in_step=step.isdecimal() and len(step) < 10,
    )


def on_nodes(nodes):
    """The options of srun for these nodes."""
    return [f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}"]


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
