"""ReFrame's description of Frontier: 8 GPUs (GCDs of MI250X) on a node, Slingshot 11. Account: export SBATCH_ACCOUNT.

Sources that the comments cite by name:
  OLCF     https://docs.olcf.ornl.gov/software/analytics/pytorch_frontier.html
  Guide    https://docs.olcf.ornl.gov/systems/frontier_user_guide.html
"""

import os

VENV = "PyTorch/2.10.0-rocm-7.1-venv"

site_configuration = {
    "systems": [
        {
            "name": "frontier",
            "descr": "Frontier",
            "hostnames": [".*"],  # one system per file
            "modules_system": "lmod" if "LMOD_CMD" in os.environ else "nomod",  # elsewhere, tests can be listed
            "partitions": [
                {
                    "name": "login",
                    "scheduler": "local",
                    "launcher": "local",
                    "environs": ["recipe"],
                    "features": ["install"],
                },
                {
                    "name": "batch",
                    "scheduler": "slurm",
                    "launcher": "srun",
                    "sched_options": {"use_nodes_option": True},
                    # Nodes are allocated as a whole, with their GPUs (Guide). For the network see OLCF.
                    "access": ["--partition=batch", "--network=disable_rdzv_get"],
                    "devices": [{"type": "gpu", "arch": "gfx90a", "num_devices": 8}],
                    "environs": ["venv"],
                    "features": ["nodes", "srun", "torchrun", "ddp-env"],
                    "max_jobs": 10,
                    "extras": {
                        "ranks_per_node": 8,
                        "nodes": 8,
                        # `srun -c7 --gpus-per-task=1 --gpu-bind=closest` (OLCF)
                        "cpus_per_task": 7,
                        "srun_options": ["--gpus-per-task=1", "--gpu-bind=closest"],
                        # On one node RCCL's plugin does not start (OLCF)
                        "one_node_variables": {"NCCL_NET": "Socket"},
                        "language_model": ["--size 124M", "--bf16", "--context 1024", "--batch-size 256", "--steps 50"],
                        # No value is published: record yours on good nodes (docs/reframe.md)
                        "references": {},
                    },
                },
            ],
        }
    ],
    "environments": [
        {
            "name": "venv",
            "modules": [VENV, "rccl-net-plugin"],
            # cpe/26.03, which the module loads, is not the default (OLCF)
            "env_vars": [["LD_LIBRARY_PATH", "$CRAY_LD_LIBRARY_PATH:$LD_LIBRARY_PATH"]],
            "features": ["pytorch"],
            "extras": {"module": VENV},
        },
        {
            "name": "recipe",
            "features": ["recipe"],
            "extras": {"recipe": f"{VENV.replace('/', '-', 1)}.eb", "module": VENV},
        },
    ],
    "storage": [{"enable": True}],  # for --performance-report and --performance-compare
}
