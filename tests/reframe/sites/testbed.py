"""ReFrame's description of the testbed: four nodes on one machine, without GPUs and without accounting."""

import os
import shutil
import sys
from pathlib import Path

from description import IN_IMAGE, describe, nodes, pytorch, recipe

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPOSITORY))
from testbed import recipes  # noqa: E402

sys.path.remove(str(REPOSITORY))  # ReFrame removes a directory of its own by its place in the list

CONTAINER, VENV = (recipes.module(name) for name in (recipes.CONTAINER, recipes.VENV))
TESTBED = os.environ.get("PYTORCH_TESTBED", REPOSITORY / ".testbed")
#: Debian's commands of two MPIs; `python3 testbed optional` installs them.
MPIRUN = {"openmpi": "mpirun.openmpi", "mpich": "mpirun.mpich"}
MPIRUN = {name: command for name, command in MPIRUN.items() if shutil.which(command)}
#: Of an idle machine with two cores, which all nodes share. The tolerance is for what else runs on it.
REFERENCES = {
    "AllReduce": {
        "2x2": {"latency_4B": [400.0, None, 200.0, "us"], "busbw_16MiB": [0.4, -0.95, None, "GB/s"]},
        "4x2": {"latency_4B": [3000.0, None, 100.0, "us"], "busbw_16MiB": [0.35, -0.95, None, "GB/s"]},
    },
    "TrainMNIST": {"2x2": {"images_per_second": [10000.0, -0.95, None, "images/s"]}},
    "TrainLanguageModel": {"2x2": {"tokens_per_second": [10000.0, -0.95, None, "tokens/s"]}},
}

site_configuration = describe(
    "testbed",
    "Throw-away Slurm cluster of this repository",
    nodes(
        "batch",
        access=[],
        launchers=["srun", "torchrun", "ddp-env", *MPIRUN],
        # the testbed has no accounting, which ReFrame's `slurm` needs: sacct is not used
        scheduler="squeue",
        max_jobs=1,
        resources=[],
        extras={
            "ranks_per_node": 2,
            "nodes": 4,
            "mpirun": MPIRUN,
            "references": REFERENCES,
        },
    ),
    [pytorch("container", CONTAINER, extras=IN_IMAGE), pytorch("venv", VENV)],
    recipes=[recipe(CONTAINER, "recipe-container"), recipe(VENV, "recipe-venv")],
    prefix=f"{TESTBED}/reframe",
)
site_configuration["general"] = [{"report_file": f"{TESTBED}/reframe/reports/run-{{sessionid}}.json"}]
site_configuration["storage"] = [{"enable": True, "sqlite_db_file": f"{TESTBED}/reframe/reports/results.db"}]
