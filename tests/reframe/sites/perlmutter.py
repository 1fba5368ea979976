"""ReFrame's description of Perlmutter's GPU nodes: 4 A100 on a node, Slingshot 11. Account: export SBATCH_ACCOUNT.

Sources that the comments cite by name:
  Tutorial https://github.com/NERSC/sc24-dl-tutorial, submit_pm.sh
  Queues   https://docs.nersc.gov/jobs/policy/
"""

from description import describe, nodes, pytorch, recipe

VENV = "PyTorch/2.15.0-cuda-13.2-perlmutter-venv"
PODMAN = "PyTorch/2.10.0-ngc-26.01-podman-hpc"
SHIFTER = "PyTorch/2.10.0-ngc-26.01-shifter"
#: As in payload/jobs/perlmutter/submit_batch_shifter.sh.
SHIFTER_OPTIONS = {"shifter": {"image": "nersc/pytorch:26.01.01", "modules": "gpu,nccl-cu13-plugin"}}
IN_SHIFTER = {"enter": "shifter --image=$SHIFTER_IMAGE ", "runscripts": "$RUNSCRIPTS/"}

site_configuration = describe(
    "perlmutter",
    "Perlmutter, GPU nodes",
    nodes(
        "gpu",
        # "debug" is the default queue (Queues); for more nodes: -J qos=regular
        access=["--constraint=gpu", "--qos=debug"],
        gpus=4,
        arch="sm_80",
        resources=[
            {"name": "_rfm_gpu", "options": ["--gpus-per-node={num_gpus_per_node}"]},
            {"name": "shifter", "options": ["--image={image}", "--module={modules}"]},
        ],
        max_jobs=2,
        extras={
            "ranks_per_node": 4,
            "nodes": 4,
            "cpus_per_task": 32,  # of 128 (Tutorial)
            # No value is published: record yours on good nodes (docs/reframe.md)
            "references": {},
        },
    ),
    [
        pytorch("venv", VENV, after=["nccl"]),
        pytorch("podman-hpc", PODMAN),
        pytorch("shifter", SHIFTER, extras=IN_SHIFTER, resources=SHIFTER_OPTIONS),
    ],
    recipes=[recipe(VENV, "recipe-venv"), recipe(PODMAN, "recipe-podman-hpc"), recipe(SHIFTER, "recipe-shifter")],
)
