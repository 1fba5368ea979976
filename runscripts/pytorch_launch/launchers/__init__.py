# SPDX-License-Identifier: BSD-3-Clause
"""The launchers: a row each, and the questions that all commands ask about them.

Only this folder knows the variables of schedulers and of MPI. `discovery` finds the World of this process. A new
launcher is a row of LAUNCHERS and a function that returns a World.
"""

from pytorch_launch import Record


class Launcher(Record):
    """What starts ranks.

    `name`               for messages
    `sign`               a variable that only it sets
    `discover`           module and function of this folder, as `mpi:open_mpi`, that take the environment and the name
                         of this host, and return the World, or None if it did not start this process
    `local_rank`         the variable with the number of a rank on its node
    `programs`           its processes above a rank, as the kernel shortens their names
    `more_cores`         how its user gives ranks more cores
    `one_task_per_node`  what starts one task per node; of Slurm with `{nodes}` for their number
    `to_all_ranks`       how to export a variable to all ranks: `export NAME=value <...>`
    """

    fields = "name sign discover local_rank programs more_cores one_task_per_node to_all_ranks"

    def is_first_task(self, env):
        """Whether `env` is of its first task on a node."""
        return env.get(self.local_rank, "") in ("", "0")


TORCHRUN = Launcher(
    name="torchrun",
    sign="TORCHELASTIC_RUN_ID",
    discover="torchrun:worker",
    local_rank="LOCAL_RANK",
    programs=(),
    more_cores="give this process more cores",
    one_task_per_node="torchrun",
    to_all_ranks="on all ranks",
)
OPEN_MPI = Launcher(
    name="Open MPI",
    sign="OMPI_COMM_WORLD_RANK",
    discover="mpi:open_mpi",
    local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
    programs=(
        "mpirun",
        "mpiexec",
        "orterun",
        "orted",
        "prterun",
        "prted",
        "prte",
        "mpirun.openmpi",  # Debian's names
        "mpiexec.openmpi",
    ),
    more_cores="start mpirun with --bind-to none",
    one_task_per_node="mpirun --map-by ppr:1:node --bind-to none",
    to_all_ranks="with mpirun -x",
)
HYDRA = Launcher(
    name="MPICH",
    sign="MPI_LOCALRANKID",
    discover="mpi:hydra",
    local_rank="MPI_LOCALRANKID",
    programs=("mpirun", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "mpirun.mpich", "mpiexec.mpich"),
    more_cores="start mpirun with -bind-to none, Intel MPI's with I_MPI_PIN=0",
    one_task_per_node="mpirun -ppn 1 -bind-to none",
    to_all_ranks="with mpiexec -genv",
)
FLUX = Launcher(
    name="Flux",
    sign="FLUX_TASK_RANK",
    discover="flux:task",
    local_rank="FLUX_TASK_LOCAL_ID",
    programs=("flux-shell",),
    more_cores="start flux run with -o cpu-affinity=off, at LLNL with -o mpibind=off",
    one_task_per_node="flux run --tasks-per-node=1 -o cpu-affinity=off",
    to_all_ranks="before flux run",
)
SLURM = Launcher(
    name="Slurm",
    sign="SLURM_STEP_ID",
    discover="slurm:step",
    local_rank="SLURM_LOCALID",
    programs=("slurmstepd",),
    more_cores="give each rank its own cores with srun -c <cores>, or all of the job's with --cpu-bind=none",
    # in a job with more tasks, srun ignores --ntasks-per-node
    one_task_per_node="srun -N{nodes} -n{nodes}",
    to_all_ranks="before srun",
)
PALS = Launcher(
    name="PALS",
    sign="PALS_RANKID",
    discover="mpi:pals",
    local_rank="PALS_LOCAL_RANKID",
    programs=("palsd", "mpiexec"),
    more_cores="start mpiexec with --cpu-bind none",
    one_task_per_node="mpiexec --ppn 1 --cpu-bind none",
    to_all_ranks="with mpiexec --env",
)
#: A process that none of them started.
ALONE = Launcher(
    name="single process",
    sign="",
    discover="single:process",
    local_rank="",
    programs=(),
    more_cores="give this process more cores, with taskset or in its container",
    one_task_per_node="mpirun -ppn 1",
    to_all_ranks="on all ranks",
)

#: The first whose sign is set counts: torchrun starts more ranks than the task that it runs in; the daemons that
#: mpirun starts on other nodes are a Slurm step, whose variables its ranks inherit; a Flux instance may run in a Slurm
#: step, and `flux run` passes on the environment of its shell, and the variables of PALS for Cray's PMI.
LAUNCHERS = (TORCHRUN, OPEN_MPI, HYDRA, FLUX, SLURM, PALS)

#: Those whose ranks have the cores that the launcher's process has, such as those of a PBS job.
OF_MPI = (OPEN_MPI, HYDRA, PALS)

#: Set in a job of Slurm, of Flux (in a script too: flux-environment(7)), of PBS, and of LSF.
JOBS = ("SLURM_JOB_ID", "FLUX_URI", "PBS_JOBID", "LSB_JOBID")


def is_first_task_of_node(env):
    """Whether `env`, which may be inherited, is of the first task of a launch on this node, or outside any launch."""
    for launcher in LAUNCHERS:
        if env.get(launcher.sign):
            return launcher.is_first_task(env)
    return True


def is_of_mpi(env):
    """Whether MPI started a process with environment `env`: its other variables may be those of another node."""
    return any(env.get(launcher.sign) for launcher in OF_MPI)


def programs_of_mpi():
    """The names of the programs of MPI that start ranks."""
    return programs(OF_MPI)


def programs(launchers=LAUNCHERS):
    """The names of the programs that start ranks."""
    return {program for launcher in launchers for program in launcher.programs}


def in_job(env):
    """Whether `env` is of a process in a job, in its script or in a task."""
    return any(env.get(name) for name in JOBS)


def step_of(env):
    """Job and step of Slurm, as `7.0`, which the ranks of a launch on a node share; `7.` outside a step, "" without."""
    if not env.get("SLURM_JOB_ID"):
        return ""
    return f"{env['SLURM_JOB_ID']}.{env.get('SLURM_STEP_ID', '')}"


def node_name(env, hostname):
    """The name of this node in Slurm's node lists, which may differ from that of the host."""
    return env.get("SLURMD_NODENAME") or hostname


def submit_directory(env):
    """The directory from which the job was submitted, None if no variable has it."""
    return env.get("SLURM_SUBMIT_DIR") or env.get("PBS_O_WORKDIR")
