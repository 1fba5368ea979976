# SPDX-License-Identifier: BSD-3-Clause
"""The help texts of the commands."""

USAGE = {
    "conda-python-simple": """\
usage: conda-python-simple [--help] [arguments of python]

Runs `python` of the active environment, else of the module, as one process. Directories of another Python or
torch are removed from PYTHONPATH and LD_LIBRARY_PATH.

  WITH_CONDA, WITH_VENV        commands that activate an environment first, if set
  PYTORCH_LAUNCH_ACTIVE=0      run the module's Python, whatever environment is active
  PYTORCH_LAUNCH_KEEP_PATHS=1  keep PYTHONPATH, PYTHONHOME and LD_LIBRARY_PATH
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
  --help                print this text
(these options come first; all other arguments are those of python)

  WITH_CONDA, WITH_VENV        commands that activate an environment first, if set
  PYTORCH_LAUNCH_VERBOSE=1     print one line per rank, of decisions and their sources, on standard error;
                               2 also runs nvidia-smi, rocm-smi or xpu-smi, once per node
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
