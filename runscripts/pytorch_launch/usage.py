"""The help texts of the commands; printed by `launch`."""

USAGE = {
    "conda-python-simple": """\
usage: conda-python-simple [--help] [arguments of python]

Runs `python` in the module's environment, as one process, kept from other installations of packages:
directories on PYTHONPATH and LD_LIBRARY_PATH that belong to another Python or torch are left out.

  WITH_CONDA, WITH_VENV        commands that activate an environment first, if set
  PYTORCH_LAUNCH_KEEP_PATHS=1  leave PYTHONPATH, PYTHONHOME and LD_LIBRARY_PATH as they are
""",
    "conda-python-distributed": """\
usage: conda-python-distributed [--dry-run] [--virtual-local-rank] [arguments of python]

Runs `python` as one rank of a world, for example

    srun -N2 --ntasks-per-node=2 conda-python-distributed -u train.py --lr 0.1
    mpirun -np 4 conda-python-distributed -u train.py --lr 0.1

with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT,
OMP_NUM_THREADS and private cache directories set for torch, bound to the cores nearest its GPU. The
world is torchrun's, Open MPI's, MPICH's, that of the Slurm step, that of PALS, else this process alone.
What you export yourself stays as it is, and so does a mask that you or Slurm gave.

  --dry-run             print the variables that would be set, start nothing
  --virtual-local-rank  LOCAL_RANK=0 and only its own GPU for each rank, as torchrun's option of that name:
                        for scripts that take LOCAL_RANK for the device where each rank sees one GPU
  --help                print this text
(own options only as the first arguments; everything else is for python)

  WITH_CONDA, WITH_VENV        commands that activate an environment first, if set
  PYTORCH_LAUNCH_VERBOSE=1     one line per rank of what was decided and why, on standard error;
                               with 2 also nvidia-smi or rocm-smi, once per node
  PYTORCH_LAUNCH_KEEP_PATHS=1  leave PYTHONPATH, PYTHONHOME and LD_LIBRARY_PATH as they are
""",
    "torchrun-distributed": """\
usage: torchrun-distributed [options of torchrun] SCRIPT [arguments of the script]

Runs torchrun on one node of a world, once per node, for example

    srun -N2 --ntasks-per-node=1 torchrun-distributed --max-restarts=3 train.py --lr 0.1
    mpirun --map-by ppr:1:node --bind-to none torchrun-distributed --nproc-per-node=2 train.py --lr 0.1

with the number of nodes, a c10d rendezvous on the first node, and as many workers as this task sees
GPUs, one without; torchrun's own options win. Each worker is a rank of conda-python-distributed.
""",
    "ddp-env": """\
usage: source <(ddp-env)

Prints what conda-python-distributed would set for this rank, as shell code, for example

    srun -N2 --ntasks-per-node=2 bash -c 'source <(ddp-env) && exec python -u train.py'

A rank is not bound to cores by it.
""",
    "get-master": """\
usage: get-master [NODELIST]

Prints the first host of a Slurm node list; by default the one of this step, else of this job:

    MASTER_ADDR=$(get-master)
""",
}
