"""ReFrame's description of LUMI-G: 8 GPUs (GCDs of MI250X) on a node, Slingshot 11. Account: export SBATCH_ACCOUNT.

Sources that the comments cite by name:
  ReFrame  https://github.com/Lumi-supercomputer/lumi-reframe-tests, config/lumi.py, checks/microbenchmarks:
           gpu/rccl_test.py and torch/torch_comm_coll.py
  Page     docs/sites/lumi.md of this repository, with its sources
"""

import os

IMAGE = "PyTorch/2.10.0-rocm-7.0.2-python-3.12-singularity-20260807"
STACK = "LUMI/25.03"

site_configuration = {
    "systems": [
        {
            "name": "lumi",
            "descr": "LUMI-G",
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
                    "name": "standard-g",
                    "scheduler": "slurm",
                    "launcher": "srun",
                    "sched_options": {"use_nodes_option": True},
                    # the partition and memory of payload/jobs/lumi/mnist.slurm
                    "access": ["--partition=standard-g", "--mem=480G"],
                    "resources": [{"name": "_rfm_gpu", "options": ["--gpus-per-node={num_gpus_per_node}"]}],
                    "devices": [{"type": "gpu", "arch": "gfx90a", "num_devices": 8}],
                    "environs": ["container"],
                    "features": ["nodes", "srun", "torchrun", "ddp-env"],
                    "max_jobs": 10,
                    "extras": {
                        "ranks_per_node": 8,
                        "nodes": 8,
                        # no cpus_per_task: the launcher binds each rank to the cores nearest its GPU (Page)
                        "allreduce_options": ["--max-size 512M"],
                        "language_model": ["--size 124M", "--bf16", "--context 1024", "--batch-size 256", "--steps 50"],
                        "references": {
                            # 128 MiB: by rccl-tests with half precision. 512 MiB: by torch, 840 Gbit/s of
                            # 2 * size / time (ReFrame), which is 52.5 GB/s * 2 * 15/16 of bus bandwidth.
                            "AllReduce": {
                                "2x8": {
                                    "busbw_128MiB": [85.0, -0.05, None, "GB/s"],
                                    "busbw_512MiB": [98.4, -0.1, None, "GB/s"],
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
            "name": "container",
            "modules": [STACK, IMAGE],
            "features": ["pytorch"],
            "extras": {"module": IMAGE, "enter": "singularity exec $SIF ", "variables": ["SIF", "SIFPYTORCH"]},
        },
        {
            "name": "recipe",
            "modules": [STACK, "partition/container", "EasyBuild-user"],
            "features": ["recipe"],
            "extras": {"recipe": f"{IMAGE.replace('/', '-', 1)}.eb", "module": IMAGE},
        },
    ],
    "storage": [{"enable": True}],  # for --performance-report and --performance-compare
}
