"""ReFrame's description of the GH200 nodes of Alps (Clariden, Daint, Santis). Account: export SBATCH_ACCOUNT.

Sources that the comments cite by name:
  Slurm    https://docs.cscs.ch/running/slurm/, "Partitions" and "Affinity"
  NCCL     https://docs.cscs.ch/software/communication/nccl/, "NCCL Performance"
"""

from description import describe, nodes, pytorch, recipe

IMAGE = "PyTorch/2.12.0-ngc-26.05-ce"
ENGINE = {"srun_options": ["--environment=$PYTORCH_EDF"], "runscripts": "$RUNSCRIPTS/", "variables": ["PYTORCH_EDF"]}

site_configuration = describe(
    "alps",
    "Alps, GH200 nodes",
    nodes(
        "normal",
        # the default partition; "debug" has two nodes at most (Slurm)
        access=["--partition=normal"],
        gpus=4,
        arch="sm_90",
        extras={
            "ranks_per_node": 4,
            "nodes": 8,
            "cpus_per_task": 72,  # the cores of a GH200 (Slurm)
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
    ),
    [pytorch("container-engine", IMAGE, extras=ENGINE)],
    recipes=[recipe(IMAGE)],
)
