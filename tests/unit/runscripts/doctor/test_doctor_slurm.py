"""The doctor's check of Slurm."""

import os

import pytest
from pytorch_doctor import FAIL, NOT_APPLICABLE, OK
from pytorch_doctor.checks import slurm
from pytorch_doctor.context import Context
from variables import variables

#: A task whose nodes are all this host.
HERE = variables(
    "SLURM_STEP_NODELIST=localhost SLURMD_NODENAME=localhost SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=2 "
    "SLURM_STEP_TASKS_PER_NODE=2 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0"
)
ALONE = "SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=1 SLURM_STEP_TASKS_PER_NODE=1"


@pytest.mark.parametrize(
    ("changes", "verdict", "message", "remedy"),
    [
        (ALONE, OK, "Slurm step 7.0, 1 node, CPUs ", ""),
        ("SLURM_STEP_NODELIST=nid[001-", FAIL, "unmatched bracket", "unset SLURM_STEP_NODELIST"),
        ("SLURM_PROCID=5", FAIL, "SLURM_PROCID=5 is outside 0 to 1", "look for a stray export"),
        ("RANK=1", FAIL, "RANK=1 is exported, but SLURM_PROCID=0", "unset RANK"),
    ],
)
def test_a_step_with_known_nodes_is_fine_and_others_are_a_failure(step, tmp_path, changes, verdict, message, remedy):
    cpus = {"SLURM_CPUS_ON_NODE": str(max(2, len(os.sched_getaffinity(0))))}
    found = slurm.check_slurm(Context({**step, **HERE, **cpus, **variables(changes)}))
    assert found.verdict == verdict and message in found.finding and remedy in found.remedy
    assert slurm.check_slurm(Context({"PATH": str(tmp_path)})).verdict == NOT_APPLICABLE
