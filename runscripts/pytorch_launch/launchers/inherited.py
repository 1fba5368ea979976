# SPDX-License-Identifier: BSD-3-Clause
"""Variables of another launch, which sbatch, srun and other launchers pass on: whose they are."""

import os

from pytorch_launch import LaunchError, ancestors, read
from pytorch_launch.launchers import in_job, programs_of_mpi
from pytorch_launch.launchers.variables import optional_number

#: How a job is submitted without variables of a launch. With --export=NONE, srun would pass on none of the module's;
#: sbatch passes on the masks of the step in which it runs.
SUBMIT = (
    "submit the job from a shell without the variables of another launch, or with sbatch --export=NONE and "
    "`export SLURM_EXPORT_ENV=ALL; unset ${!SLURM_CPU_BIND*}` in its script"
)

#: The programs that start the script of a job where no variable has the number of its process: those of Flux, which
#: has a number behind its name, PBS, and LSF.
DAEMONS = ("flux-broker", "pbs_mom", "sbatchd", "res")

#: Daemons of MPI that pass on the variables of Open MPI: those of Hydra and PALS.
OTHER_DAEMONS = ("hydra_pmi_proxy", "palsd")

#: The file for errors of a worker of torchrun. The next launch may have the same run id (torchrun's default is `none`).
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"

#: The number of the initial namespace of processes (Linux, include/linux/proc_ns.h, PROC_PID_INIT_INO).
HOSTS_PROCESSES = 0xEFFFFFFC


def is_inherited(env, name):
    """Whether the task or the script of this job had the variable `name` when it started, so no launcher in it set it.

    None where that is not known: outside a job, and in a container that hides the process of the task or script.
    """
    if not in_job(env):
        return None
    task = env.get("SLURM_TASK_PID")
    starters = programs_of_mpi()
    child = None
    for pid, program in ancestors():
        if program in starters:
            starters = ()  # the nearest sets its own variables, and passes on those of torchrun and of other launchers
            if _is_set_by(program, name):
                return False
        if program.rstrip("-0123456789") in DAEMONS:
            task = task or child
            break
        child = pid
    started_with = _variables_at_start(env, task)
    if started_with is None:
        return None
    return all(f"{each}={env[each]}" in started_with for each in (name, ERROR_FILE) if env.get(each))


def _is_set_by(program, name):
    """Whether a program of MPI sets the variable `name` for its ranks."""
    if name == "TORCHELASTIC_RUN_ID":
        return False
    is_of_open_mpi = name.startswith(("OMPI_", "PMIX_"))
    return is_of_open_mpi == (program not in OTHER_DAEMONS)


def _variables_at_start(env, task):
    """The variables with which the process `task` started, as NAME=VALUE, None if it is hidden or another one's."""
    if not task:
        return None
    text = read(f"/proc/{task}/environ")
    if not text:
        return None
    variables = text.split("\0")
    slurms = env.get("SLURM_TASK_PID")
    if slurms and f"SLURM_TASK_PID={slurms}" not in variables:
        return None
    return variables


def is_of_another_step(env, name):
    """Whether the variable `name` has the form `<job>.<step>` of this package, and is not of this job or step."""
    job, _, step = env.get(name, "").partition(".")
    if not (job.isdecimal() and step.isdecimal()):
        return False
    # Slurm 26.05 calls the step of salloc's shell -6
    current = env.get("SLURM_STEP_ID", step).replace("-6", "4294967290")
    return env.get("SLURM_JOB_ID", job) not in ("", job) or current not in ("", step)


def is_of_this_job(env, name):
    """Whether the variable `name` has the form `<job>.<step>` of this package, and is of a step of this job."""
    return bool(env.get("SLURM_JOB_ID")) and env[name].startswith(f"{env['SLURM_JOB_ID']}.")


def check_step(env, world, sign):
    """Raise LaunchError if `world`, of torchrun or mpirun, has fewer ranks than the Slurm step around it has tasks.

    Then srun has started this process, and the other variables, such as `sign`, are left from a launch around srun. A
    step with one task on each node proves nothing: mpirun's daemons are such a step, also on nodes without ranks. In
    one task of a step, as in a shell of `srun --pty`, these launchers may start fewer ranks.
    """
    tasks = optional_number(env, "SLURM_STEP_NUM_TASKS")
    nodes = optional_number(env, "SLURM_STEP_NUM_NODES")
    if tasks is None or tasks == nodes or world.size >= tasks:
        return
    if is_inherited(env, sign) is None:
        fault = f"{world.source} has WORLD_SIZE={world.size}, but SLURM_STEP_NUM_TASKS={tasks}"
        remedy = "the variables of the launch around srun, such as TORCHELASTIC_RUN_ID or OMPI_COMM_WORLD_RANK"
        raise LaunchError(fault, f"unset {remedy}")


def check_started_by_slurm(env, world):
    """Raise LaunchError if the variables of a step with several ranks are those of a process that has ended.

    A shell may have them from a file, or from a job of yesterday. Where /proc has the processes of the host, it has
    the task too, or a slurmstepd is above what the task has left; in a container with numbers of its own none is seen.
    """
    task = env.get("SLURM_TASK_PID")
    if world.size == 1 or not task or not sees_processes_of_host():
        return
    if os.path.exists(f"/proc/{task}"):  # not above this process in a container that podman detaches from its command
        return
    if any(program in ("slurmstepd", "") for _, program in ancestors()):  # "": hidden, as with hidepid=2
        return
    rank = f"SLURM_PROCID={env.get('SLURM_PROCID')}"
    fault = f"{rank} of {world.source} is set, but no slurmstepd has started this process"
    raise LaunchError(fault, "start it with srun, or unset the variables of Slurm, which are left from another shell")


def sees_processes_of_host():
    """Whether this process has its number in the host's namespace of processes."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == HOSTS_PROCESSES
    except OSError:
        return False
