"""Who started this process; called by `launch`.

Launchers are known here and nowhere else: one module for each kind, with functions that take the
environment and the host's name and return a World, or None where they did not start this process.
"""

# A variable that only this launcher sets, then its module and function. The first one that fits wins:
# torchrun starts more ranks than the task that it runs in; the daemons that mpirun starts on other nodes
# are a Slurm step, whose variables its ranks inherit; and srun offers PMI beside its own variables.
LAUNCHERS = (
    ("TORCHELASTIC_RUN_ID", "torchrun", "worker"),
    ("OMPI_COMM_WORLD_RANK", "mpi", "open_mpi"),
    ("MPI_LOCALRANKID", "mpi", "hydra"),
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


#: For a launcher's sign in the environment: how its user leaves ranks unbound, and starts one task per node.
OPTIONS = {
    "OMPI_COMM_WORLD_RANK": ("start mpirun with --bind-to none", "mpirun --map-by ppr:1:node --bind-to none"),
    "MPI_LOCALRANKID": ("start mpirun with -bind-to none, Intel MPI's with I_MPI_PIN=0", "mpirun -ppn 1 -bind-to none"),
    "PALS_RANKID": ("start mpiexec with --cpu-bind none", "mpiexec --ppn 1 --cpu-bind none"),
    "SLURM_STEP_ID": (
        "give each rank its own with srun -c <cores>, or all the job's with --cpu-bind=none",
        "srun --ntasks-per-node=1",
    ),
}


def binding(env):
    """What to do about ranks that share too few cores, in the words of the launcher that bound them.

    The workers of torchrun have the cores of their agent, whose variables they inherit.
    """
    return _options(env, 0) or "give this process more cores, with taskset or in its container"


def one_task_per_node(env):
    """How to start one task on each node, in the words of the launcher that started this process."""
    return _options(env, 1) or "mpirun -ppn 1"


def _options(env, index):
    return next((options[index] for sign, options in OPTIONS.items() if env.get(sign)), None)


def _launcher(name):
    """The module of one kind: a rank pays for the launcher that started it, not for all of them."""
    return __import__(f"pytorch_launch.launchers.{name}", fromlist=["*"])
