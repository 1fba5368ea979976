"""ReFrame's description of Perlmutter's GPU nodes: 4 A100 on a node, Slingshot 11. Account: export SBATCH_ACCOUNT.

Sources that the comments cite by name:
  Tutorial https://github.com/NERSC/sc24-dl-tutorial, submit_pm.sh
  Queues   https://docs.nersc.gov/jobs/policy/
"""

import os

VENV = "PyTorch/2.15.0-cuda-13.2-perlmutter-venv"
PODMAN = "PyTorch/2.10.0-ngc-26.01-podman-hpc"
SHIFTER = "PyTorch/2.10.0-ngc-26.01-shifter"

site_configuration = {
    "systems": [
        {
            "name": "perlmutter",
            "descr": "Perlmutter, GPU nodes",
            "hostnames": [".*"],  # one system per file
            "modules_system": "lmod" if "LMOD_CMD" in os.environ else "nomod",  # elsewhere, tests can be listed
            "partitions": [
                {
                    "name": "login",
                    "scheduler": "local",
                    "launcher": "local",
                    "environs": ["recipe-venv", "recipe-podman-hpc", "recipe-shifter"],
                    "features": ["install"],
                },
                {
                    "name": "gpu",
                    "scheduler": "slurm",
                    "launcher": "srun",
                    "sched_options": {"use_nodes_option": True},
                    # "debug" is the default queue (Queues); for more nodes: -J qos=regular
                    "access": ["--constraint=gpu", "--qos=debug"],
                    "resources": [
                        {"name": "_rfm_gpu", "options": ["--gpus-per-node={num_gpus_per_node}"]},
                        {"name": "shifter", "options": ["--image={image}", "--module={modules}"]},
                    ],
                    "devices": [{"type": "gpu", "arch": "sm_80", "num_devices": 4}],
                    "environs": ["venv", "podman-hpc", "shifter"],
                    "features": ["nodes", "srun", "torchrun", "ddp-env"],
                    "max_jobs": 2,
                    "extras": {
                        "ranks_per_node": 4,
                        "nodes": 4,
                        "cpus_per_task": 32,  # of 128 (Tutorial)
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
            "modules": [VENV, "nccl"],
            "features": ["pytorch"],
            "extras": {"module": VENV},
        },
        {
            "name": "podman-hpc",
            "modules": [PODMAN],
            "features": ["pytorch"],
            "extras": {"module": PODMAN},
        },
        {
            "name": "shifter",
            "modules": [SHIFTER],
            "features": ["pytorch"],
            # as in payload/jobs/perlmutter/submit_batch_shifter.sh
            "resources": {"shifter": {"image": "nersc/pytorch:26.01.01", "modules": "gpu,nccl-cu13-plugin"}},
            "extras": {
                "module": SHIFTER,
                "enter": "shifter --image=$SHIFTER_IMAGE ",
                "runscripts": "$RUNSCRIPTS/",
            },
        },
        *(
            {
                "name": f"recipe-{name}",
                "features": ["recipe"],
                "extras": {"recipe": f"{module.replace('/', '-', 1)}.eb", "module": module},
            }
            for name, module in (("venv", VENV), ("podman-hpc", PODMAN), ("shifter", SHIFTER))
        ),
    ],
    "storage": [{"enable": True}],  # for --performance-report and --performance-compare
}
