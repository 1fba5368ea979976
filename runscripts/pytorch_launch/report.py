# SPDX-License-Identifier: BSD-3-Clause
"""What the commands print: the line of a rank's decisions (PYTORCH_LAUNCH_VERBOSE), shell code, and help."""

from pytorch_launch.plan import THREADS
from pytorch_launch.topology import cpu_list

# Variables that a user may export to override a decision.
OVERRIDES = ("MASTER_ADDR", "MASTER_PORT", THREADS)


def line(plan, env):
    """The decisions for one rank and their sources; `env` is what they were made from."""
    world, placement = plan.world, plan.placement
    overridden = [name for name in OVERRIDES if env.get(name) and not world.exported]
    threads = plan.changes.get(THREADS) or env.get(THREADS)
    parts = [
        f"{world.node}: rank {world.rank} of {world.size}, local rank {world.local_rank} of {world.local_size}, "
        f"node rank {world.node_rank}, master {plan.place.address}:{plan.place.port}, from {world.source}",
        describe_gpu(plan.devices),
        f"{_describe_cpus(placement)}, NUMA node {cpu_list(placement.numa) or 'unknown'}, "
        f"OMP_NUM_THREADS {threads or 'not set'}",
        f"Python of {plan.python or 'the module'}",
        f"exported before: {', '.join(overridden) or 'nothing'}",
    ]
    return "; ".join(parts)


def _describe_cpus(placement):
    cpus = f"CPUs {cpu_list(placement.cpus)}"
    if placement.bind is not None:
        cpus += " (bound)"
    return cpus


def describe_gpu(devices):
    """The GPU of a rank with its PCI address, if that is known."""
    if devices.index is None:
        return "no GPU"
    where = "PCI address unknown"
    if devices.gpu is not None:
        where = devices.gpu.pci
    return f"device {devices.index} of {devices.count} {devices.vendor} ({where})"


def statements(changes):
    """Lines of a POSIX shell for `source` that set the variables of `changes`, and unset those that are None."""
    lines = []
    for name, value in sorted(changes.items()):
        if value is None:
            lines.append(f"unset {name}\n")
        else:
            quoted = value.replace("'", "'\\''")
            lines.append(f"export {name}='{quoted}'\n")
    return "".join(lines)


#: What `--help` prints.
USAGE = {
    "conda-python-simple": """\
usage: conda-python-simple [--help] [arguments of python]

Runs `python` of the active environment, else of the module, as one process. Directories of another Python or
torch are removed from PYTHONPATH and LD_LIBRARY_PATH, as by conda-python-distributed, whose --help has the variables
that change this.
""",
    "conda-python-distributed": """\
usage: conda-python-distributed [--dry-run] [--virtual-local-rank] [arguments of python]

Runs `python` as one rank of a world, for example

    srun -N2 --ntasks-per-node=2 conda-python-distributed -u train.py --lr 0.1
    mpirun -np 4 conda-python-distributed -u train.py --lr 0.1

It sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT,
OMP_NUM_THREADS and private cache directories for torch, and binds the rank to the cores nearest its GPU.
The world is that of torchrun, Open MPI, MPICH, the Slurm step, Flux, or PALS, else this process alone.
Variables that you export take precedence. A CPU mask from you or Slurm is kept.

  --dry-run             print the variables that would be set, and exit
  --virtual-local-rank  give each rank LOCAL_RANK=0 and only its own GPU, as torchrun's option of that name:
                        for scripts that use LOCAL_RANK as the device where each rank sees one GPU
(these options come first; all other arguments are those of python)

  WITH_CONDA, WITH_VENV        commands that activate an environment first, if set
  PYTORCH_LAUNCH_VERBOSE=1     print one line per rank, of decisions and their sources, on standard error
  PYTORCH_LAUNCH_ACTIVE=0      run the module's Python, whatever environment is active
  PYTORCH_LAUNCH_KEEP_PATHS=1  keep PYTHONPATH, PYTHONHOME and LD_LIBRARY_PATH
""",
    "torchrun-distributed": """\
usage: torchrun-distributed [options of torchrun] SCRIPT [arguments of the script]

Runs torchrun on one node of a world, once per node, for example

    srun -N2 -n2 torchrun-distributed --max-restarts=3 train.py --lr 0.1
    mpirun --map-by ppr:1:node --bind-to none torchrun-distributed --nproc-per-node=2 train.py --lr 0.1

It sets the number of nodes, a c10d rendezvous on the first node, and one worker for each GPU that this
task sees, one without GPUs. Options of torchrun take precedence. Each worker is started by
conda-python-distributed.
""",
    "ddp-env": """\
usage: source <(ddp-env)

Prints the variables that conda-python-distributed would set for this rank, as shell code, for example

    srun -N2 --ntasks-per-node=2 bash -c 'source <(ddp-env) && exec python -u train.py'

It does not bind the rank to cores.
""",
    "get-master": """\
usage: get-master [NODELIST]

Prints the first host of a Slurm node list, by default of the current step or job:

    MASTER_ADDR=$(get-master)
""",
}
