"""The help texts of the commands; printed by `launch`."""

USAGE = {
    "conda-python-distributed": """\
usage: conda-python-distributed [--dry-run | --help] [arguments of python]

Runs `python` as one rank of a world, for example

    srun -N2 --ntasks-per-node=2 conda-python-distributed -u train.py --lr 0.1

with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT,
OMP_NUM_THREADS and private cache directories set for torch. The world is torchrun's, else that of
the Slurm step, else this process alone. What you export yourself stays as it is.

  --dry-run   print the variables that would be set, start nothing
  --help      print this text
(own options only as the first argument; everything else is for python)

  WITH_CONDA, WITH_VENV     commands that activate an environment first, if set
  PYTORCH_LAUNCH_VERBOSE=1  one line per rank of what was decided and why, on standard error
""",
    "get-master": """\
usage: get-master [NODELIST]

Prints the first host of a Slurm node list; by default the one of this step, else of this job:

    MASTER_ADDR=$(get-master)
""",
}
