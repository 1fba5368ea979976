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


def _launcher(name):
    """The module of one kind: a rank pays for the launcher that started it, not for all of them."""
    return __import__(f"pytorch_launch.launchers.{name}", fromlist=["*"])
