"""ReFrame's description of the testbed: four nodes on one machine, without GPUs and without accounting."""

import os
import shutil
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPOSITORY))
from testbed import recipes  # noqa: E402

sys.path.remove(str(REPOSITORY))  # ReFrame removes a directory of its own by its place in the list

CONTAINER, VENV = (recipes.module(recipe) for recipe in (recipes.CONTAINER, recipes.VENV))
TESTBED = os.environ.get("PYTORCH_TESTBED", REPOSITORY / ".testbed")
#: Debian's commands of two MPIs; `python3 testbed optional` installs them.
MPIRUN = {
    name: command
    for name, command in (("openmpi", "mpirun.openmpi"), ("mpich", "mpirun.mpich"))
    if shutil.which(command)
}
#: Of an idle machine with two cores, which all nodes share. The tolerance is for what else runs on it.
REFERENCES = {
    "AllReduce": {
        "2x2": {"latency_4B": [400.0, None, 200.0, "us"], "busbw_16MiB": [0.4, -0.95, None, "GB/s"]},
        "4x2": {"latency_4B": [3000.0, None, 100.0, "us"], "busbw_16MiB": [0.35, -0.95, None, "GB/s"]},
    },
    "TrainMNIST": {"2x2": {"images_per_second": [10000.0, -0.95, None, "images/s"]}},
    "TrainLanguageModel": {"2x2": {"tokens_per_second": [10000.0, -0.95, None, "tokens/s"]}},
}

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
                    "max_jobs": 1,
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
                        # the ranks of all nodes share the machine's cores
                        "allreduce_options": ["--slow 8"],
                        "language_model": ["--size 100K", "--context 64", "--steps 40", "--lr 0.004"],
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
            "extras": {
                "module": CONTAINER,
                "enter": "singularity exec $SIF ",
                "variables": ["SIF", "SIFPYTORCH"],
            },
        },
        {
            "name": "venv",
            "modules": [VENV],
            "features": ["pytorch"],
            "extras": {"module": VENV},
        },
        {
            "name": "recipe-container",
            "features": ["recipe"],
            "extras": {"recipe": f"{recipes.CONTAINER}.eb", "module": CONTAINER},
        },
        {
            "name": "recipe-venv",
            "features": ["recipe"],
            "extras": {"recipe": f"{recipes.VENV}.eb", "module": VENV},
        },
    ],
    "general": [{"report_file": f"{TESTBED}/reframe/reports/run-{{sessionid}}.json"}],
    "storage": [{"enable": True, "sqlite_db_file": f"{TESTBED}/reframe/reports/results.db"}],
}
