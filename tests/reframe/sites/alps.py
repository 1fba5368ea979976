"""ReFrame's description of the GH200 nodes of Alps (Clariden, Daint, Santis). Account: export SBATCH_ACCOUNT.

Sources that the comments cite by name:
  Slurm    https://docs.cscs.ch/running/slurm/, "Partitions" and "Affinity"
  NCCL     https://docs.cscs.ch/software/communication/nccl/, "NCCL Performance"
"""

import os

IMAGE = "PyTorch/2.12.0-ngc-26.05-ce"

site_configuration = {
    "systems": [
        {
            "name": "alps",
            "descr": "Alps, GH200 nodes",
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
                    "name": "normal",
                    "scheduler": "slurm",
                    "launcher": "srun",
                    "sched_options": {"use_nodes_option": True},
                    # the default partition; "debug" has two nodes at most (Slurm)
                    "access": ["--partition=normal"],
                    "resources": [{"name": "_rfm_gpu", "options": ["--gpus-per-node={num_gpus_per_node}"]}],
                    "devices": [{"type": "gpu", "arch": "sm_90", "num_devices": 4}],
                    "environs": ["container-engine"],
                    "features": ["nodes", "srun", "torchrun", "ddp-env"],
                    "max_jobs": 10,
                    "extras": {
                        "ranks_per_node": 4,
                        "nodes": 8,
                        "cpus_per_task": 72,  # the cores of a GH200 (Slurm)
                        "language_model": ["--size 124M", "--bf16", "--context 1024", "--batch-size 256", "--steps 50"],
                        "references": {
                            # By nccl-tests, which has no Python. Latency, of 8 bytes: 17.8 us; without the fast network
                            # 50 to 85 us, so a job that does not use it is above 17.8 * 2.8 us (NCCL).
                            "AllReduce": {
                                "2x4": {
                                    "latency_4B": [17.8, None, 1.8, "us"],
                                    "busbw_128MiB": [123.0, -0.1, None, "GB/s"],
                                },
                            },
                        },
                    },
                },
            ],
        }
    ],
    "environments": [
        {
            "name": "container-engine",
            "modules": [IMAGE],
            "features": ["pytorch"],
            "extras": {
                "module": IMAGE,
                "srun_options": ["--environment=$PYTORCH_EDF"],
                "runscripts": "$RUNSCRIPTS/",
                "variables": ["PYTORCH_EDF"],
            },
        },
        {
            "name": "recipe",
            "features": ["recipe"],
            "extras": {"recipe": f"{IMAGE.replace('/', '-', 1)}.eb", "module": IMAGE},
        },
    ],
    "storage": [{"enable": True}],  # for --performance-report and --performance-compare
}
