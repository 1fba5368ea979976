"""ReFrame's description of LUMI-G: 8 GPUs (GCDs of MI250X) on a node, Slingshot 11. Account: export SBATCH_ACCOUNT.

Sources that the comments cite by name:
  ReFrame  https://github.com/Lumi-supercomputer/lumi-reframe-tests, config/lumi.py, checks/microbenchmarks:
           gpu/rccl_test.py and torch/torch_comm_coll.py
  Page     docs/sites/lumi.md of this repository, with its sources
"""

from description import IN_IMAGE, describe, nodes, pytorch, recipe

IMAGE = "PyTorch/2.10.0-rocm-7.0.2-python-3.12-singularity-20260807"
STACK = "LUMI/25.03"

site_configuration = describe(
    "lumi",
    "LUMI-G",
    nodes(
        "standard-g",
        # the partition and memory of payload/jobs/lumi/mnist.slurm
        access=["--partition=standard-g", "--mem=480G"],
        gpus=8,
        arch="gfx90a",
        extras={
            "ranks_per_node": 8,
            "nodes": 8,
            # no cpus_per_task: the launcher binds each rank to the cores nearest its GPU (Page)
            "allreduce_options": ["--max-size 512M"],
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
    ),
    [pytorch("container", IMAGE, before=[STACK], extras=IN_IMAGE)],
    recipes=[recipe(IMAGE, modules=[STACK, "partition/container", "EasyBuild-user"])],
)
