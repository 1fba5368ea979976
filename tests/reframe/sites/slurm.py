"""ReFrame's description of any Slurm cluster. Copy it, and set the values of your site at the top."""

import os

NAME = "cluster"
#: Partition, account, constraint: options of sbatch.
ACCESS = []
#: "squeue" if the cluster has no accounting (sacct): the state of a job that has ended is then unknown to ReFrame.
SCHEDULER = "slurm"
#: 0: the ranks use CPUs.
GPUS_PER_NODE = 0
RANKS_PER_NODE = GPUS_PER_NODE or 2
NODES = 4
#: Container and venv, as the recipes name them; delete the one that you have not installed.
CONTAINER = "PyTorch/2.13.0-cpu-singularity"
VENV = "PyTorch/2.13.0-cpu-venv"
#: Add "openmpi" or "mpich" if its mpirun starts ranks on several nodes; MPIRUN has the commands.
LAUNCHERS = ["srun", "torchrun", "ddp-env"]
MPIRUN = {"openmpi": "mpirun", "mpich": "mpirun"}
#: Test -> nodes x ranks per node -> [value, lower, upper, unit]: docs/reframe.md.
REFERENCES = {"AllReduce": {f"2x{RANKS_PER_NODE}": {}}}
LANGUAGE_MODEL = (
    ["--size 124M", "--bf16", "--context 1024", "--batch-size 256", "--steps 50"]
    if GPUS_PER_NODE
    else ["--size 100K", "--context 64", "--steps 40", "--lr 0.004"]
)

site_configuration = {
    "systems": [
        {
            "name": NAME,
            "descr": "A Slurm cluster",
            "hostnames": [".*"],  # one system per file
            "modules_system": "lmod" if "LMOD_CMD" in os.environ else "nomod",  # "envmod": Environment Modules
            "partitions": [
                {
                    "name": "login",
                    "scheduler": "local",
                    "launcher": "local",
                    "environs": ["recipe-container", "recipe-venv"],
                    "features": ["install"],
                },
                {
                    "name": "nodes",
                    "scheduler": SCHEDULER,
                    "launcher": "srun",
                    "sched_options": {"use_nodes_option": True},
                    "access": ACCESS,
                    "resources": [{"name": "_rfm_gpu", "options": ["--gpus-per-node={num_gpus_per_node}"]}],
                    "devices": [{"type": "gpu", "num_devices": GPUS_PER_NODE}] if GPUS_PER_NODE else [],
                    "environs": ["container", "venv"],
                    "features": ["nodes", *LAUNCHERS],
                    "max_jobs": 10,
                    "extras": {
                        "ranks_per_node": RANKS_PER_NODE,
                        "nodes": NODES,
                        "mpirun": MPIRUN,
                        "language_model": LANGUAGE_MODEL,
                        "references": REFERENCES,
                    },
                },
            ],
        }
    ],
    "environments": [
        {
            "name": "container",
            "modules": [CONTAINER],
            "features": ["pytorch"],
            "extras": {"module": CONTAINER, "enter": "singularity exec $SIF ", "variables": ["SIF", "SIFPYTORCH"]},
        },
        {"name": "venv", "modules": [VENV], "features": ["pytorch"], "extras": {"module": VENV}},
        *(
            {
                "name": f"recipe-{name}",
                "features": ["recipe"],
                "extras": {"recipe": f"{module.replace('/', '-', 1)}.eb", "module": module},
            }
            for name, module in (("container", CONTAINER), ("venv", VENV))
        ),
    ],
    "storage": [{"enable": True}],  # for --performance-report and --performance-compare
}
