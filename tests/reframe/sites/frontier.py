"""ReFrame's description of Frontier: 8 GPUs (GCDs of MI250X) on a node, Slingshot 11. Account: export SBATCH_ACCOUNT.

Sources that the comments cite by name:
  OLCF     https://docs.olcf.ornl.gov/software/analytics/pytorch_frontier.html
  Guide    https://docs.olcf.ornl.gov/systems/frontier_user_guide.html
"""

from description import describe, nodes, pytorch, recipe

VENV = "PyTorch/2.10.0-rocm-7.1-venv"
#: cpe/26.03, which the module loads, is not the default (OLCF).
LIBRARIES = [["LD_LIBRARY_PATH", "$CRAY_LD_LIBRARY_PATH:$LD_LIBRARY_PATH"]]

site_configuration = describe(
    "frontier",
    "Frontier",
    nodes(
        "batch",
        # For the network see OLCF.
        access=["--partition=batch", "--network=disable_rdzv_get"],
        gpus=8,
        arch="gfx90a",
        resources=[],  # nodes are allocated as a whole, with their GPUs (Guide)
        extras={
            "ranks_per_node": 8,
            "nodes": 8,
            # `srun -c7 --gpus-per-task=1 --gpu-bind=closest` (OLCF)
            "cpus_per_task": 7,
            "srun_options": ["--gpus-per-task=1", "--gpu-bind=closest"],
            # On one node RCCL's plugin does not start (OLCF)
            "one_node_variables": {"NCCL_NET": "Socket"},
            # No value is published: record yours on good nodes (docs/reframe.md)
            "references": {},
        },
    ),
    [pytorch("venv", VENV, after=["rccl-net-plugin"], env_vars=LIBRARIES)],
    recipes=[recipe(VENV)],
)
