# SPDX-License-Identifier: BSD-3-Clause
"""The launcher that started this process, and the world that it reports.

Only this folder knows the variables of launchers. It has one module for each kind, with functions that take the
environment and the host's name and return a World, or None if they did not start this process.
"""

# A variable that only this launcher sets, then its module and function. The first match takes precedence:
# torchrun starts more ranks than the task that it runs in; the daemons that mpirun starts on other nodes
# are a Slurm step, whose variables its ranks inherit; a Flux instance may run in a Slurm step, and `flux run` passes on
# the environment of its shell; srun offers PMI beside its own variables, and Flux offers PMI, and PALS for Cray's PMI.
LAUNCHERS = (
    ("TORCHELASTIC_RUN_ID", "torchrun", "worker"),
    ("OMPI_COMM_WORLD_RANK", "mpi", "open_mpi"),
    ("MPI_LOCALRANKID", "mpi", "hydra"),
    ("FLUX_TASK_RANK", "flux", "task"),
    ("SLURM_PROCID", "slurm", "step"),
    ("PALS_RANKID", "mpi", "pals"),
    ("PMI_LOCAL_RANK", "mpi", "pmi"),
)


def discover(env, hostname):
    """The World of the process with environment `env` on `hostname`. Raises WorldError."""
    for sign, module, function in LAUNCHERS:
        if env.get(sign):
            world = getattr(_launcher(module), function)(env, hostname)
            if world is not None:
                return world
    return _launcher("single").process(env, hostname)


#: For a variable of a launcher: the options that leave ranks unbound, and the command that starts one task per node.
OPTIONS = {
    "OMPI_COMM_WORLD_RANK": ("start mpirun with --bind-to none", "mpirun --map-by ppr:1:node --bind-to none"),
    "MPI_LOCALRANKID": ("start mpirun with -bind-to none, Intel MPI's with I_MPI_PIN=0", "mpirun -ppn 1 -bind-to none"),
    "FLUX_TASK_RANK": (
        "start flux run with -o cpu-affinity=off, at LLNL with -o mpibind=off",
        "flux run --tasks-per-node=1 -o cpu-affinity=off",
    ),
    "PALS_RANKID": ("start mpiexec with --cpu-bind none", "mpiexec --ppn 1 --cpu-bind none"),
    "SLURM_STEP_ID": (
        "give each rank its own cores with srun -c <cores>, or all of the job's with --cpu-bind=none",
        "srun --ntasks-per-node=1",
    ),
}


def more_cores(env):
    """How to give ranks more cores, with the options of the launcher that bound them.

    The workers of torchrun have the cores of their agent, whose variables they inherit.
    """
    return _options(env, 0) or "give this process more cores, with taskset or in its container"


def one_task_per_node(env):
    """The command that starts one task on each node, of the launcher that started this process."""
    return _options(env, 1) or "mpirun -ppn 1"


def _options(env, index):
    return next((options[index] for sign, options in OPTIONS.items() if env.get(sign)), None)


def _launcher(name):
    """The module of one kind, imported here so that a rank pays only for the launcher that started it."""
    return __import__(f"pytorch_launch.launchers.{name}", fromlist=["*"])
