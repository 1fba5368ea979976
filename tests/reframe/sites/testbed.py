"""ReFrame's description of the testbed: four nodes on one machine, without GPUs and without accounting."""

import os
import shutil
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
TESTBED = os.environ.get("PYTORCH_TESTBED", REPOSITORY / ".testbed")
#: Debian's commands of two MPIs; `python3 testbed optional` installs them.
MPIRUN = {name: command for name, command in (("openmpi", "mpirun.openmpi"), ("mpich", "mpirun.mpich"))
          if shutil.which(command)}  # fmt: skip

site_configuration = {
    "systems": [
        {
            "name": "testbed",
            "descr": "Throw-away Slurm cluster of this repository",
            "hostnames": [".*"],
            # without Lmod, tests can be listed only
            "modules_system": "lmod" if "LMOD_CMD" in os.environ else "nomod",
            "prefix": f"{TESTBED}/reframe",
            "partitions": [
                {
                    "name": "login",
                    "descr": "This machine, where eb runs",
                    "scheduler": "local",
                    "launcher": "local",
                    "environs": ["recipe-container", "recipe-venv"],
                    "features": ["install"],
                },
                {
                    "name": "batch",
                    "descr": "4 nodes, 2 ranks on each",
                    # the testbed has no accounting, which ReFrame's `slurm` needs: sacct is not used
                    "scheduler": "squeue",
                    "launcher": "srun",
                    "sched_options": {"use_nodes_option": True},
                    "max_jobs": 1,
                    "environs": ["container", "venv"],
                    "features": ["nodes", "srun", "torchrun", "ddp-env", *MPIRUN],
                    "extras": {
                        "ranks_per_node": 2,
                        "nodes": 4,
                        "mpirun": MPIRUN,
                        "language_model": ["--size 100K", "--context 64", "--steps 40", "--lr 0.004"],
                        "references": {},
                    },
                },
            ],
        }
    ],
    "environments": [
        {
            "name": "container",
            "modules": ["MNIST/1998", "PyTorch/2.13.0-cpu-singularity"],
            "features": ["pytorch"],
            "extras": {
                "module": "PyTorch/2.13.0-cpu-singularity",
                "enter": "singularity exec $SIF ",
                "variables": ["SIF", "SIFPYTORCH"],
            },
        },
        {
            "name": "venv",
            "modules": ["MNIST/1998", "PyTorch/2.13.0-cpu-venv"],
            "features": ["pytorch"],
            "extras": {"module": "PyTorch/2.13.0-cpu-venv"},
        },
        {
            "name": "recipe-container",
            "features": ["recipe"],
            "extras": {"recipe": "PyTorch-2.13.0-cpu-singularity.eb", "module": "PyTorch/2.13.0-cpu-singularity"},
        },
        {
            "name": "recipe-venv",
            "features": ["recipe"],
            "extras": {"recipe": "PyTorch-2.13.0-cpu-venv.eb", "module": "PyTorch/2.13.0-cpu-venv"},
        },
    ],
    "general": [
        {"resolve_module_conflicts": False, "report_file": f"{TESTBED}/reframe/reports/run-{{sessionid}}.json"}
    ],
    "storage": [{"enable": True, "sqlite_db_file": f"{TESTBED}/reframe/reports/results.db"}],
}
