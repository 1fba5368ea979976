"""ReFrame's description of any Slurm cluster. Copy it within this directory, and set the values of your site."""

from description import IN_IMAGE, describe, nodes, pytorch, recipe

#: 0: the ranks use CPUs.
GPUS_PER_NODE = 0
RANKS_PER_NODE = GPUS_PER_NODE or 2
#: Container and venv, as the recipes name them; delete the one that you have not installed.
CONTAINER = "PyTorch/2.13.0-cpu-singularity"
VENV = "PyTorch/2.13.0-cpu-venv"

site_configuration = describe(
    "cluster",
    "A Slurm cluster",
    nodes(
        "nodes",
        access=[],  # partition, account, constraint: options of sbatch
        gpus=GPUS_PER_NODE,
        # add "openmpi" or "mpich" if its mpirun starts ranks on several nodes
        launchers=["srun", "torchrun", "ddp-env"],
        # "squeue" if the cluster has no accounting (sacct): ReFrame then does not know how a job ended
        scheduler="slurm",
        extras={
            "ranks_per_node": RANKS_PER_NODE,
            "nodes": 4,
            "mpirun": {"openmpi": "mpirun", "mpich": "mpirun"},
            # test -> nodes x ranks per node -> [value, lower, upper, unit]: docs/reframe.md
            "references": {"AllReduce": {f"2x{RANKS_PER_NODE}": {}}},
        },
    ),
    [pytorch("container", CONTAINER, extras=IN_IMAGE), pytorch("venv", VENV)],
    recipes=[recipe(CONTAINER, "recipe-container"), recipe(VENV, "recipe-venv")],
)
