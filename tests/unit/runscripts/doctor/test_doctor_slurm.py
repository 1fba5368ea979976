"""The doctor's check of Slurm."""

import os

import pytest
from pytorch_doctor import FAIL, NOT_APPLICABLE, OK
from pytorch_doctor.checks import slurm
from pytorch_doctor.context import Context
from variables import variables


@pytest.fixture
def here(step):
    """The context of a task whose nodes are all this host."""

    def make(**changes):
        one_node = variables(
            "SLURM_STEP_NODELIST=localhost SLURMD_NODENAME=localhost SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=2 "
            "SLURM_STEP_TASKS_PER_NODE=2 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0"
        )
        cpus = {"SLURM_CPUS_ON_NODE": str(max(2, len(os.sched_getaffinity(0))))}
        return Context({**step, **one_node, **cpus, **changes})

    return make


def test_a_step_whose_nodes_are_known_is_fine_and_outside_of_slurm_there_is_nothing_to_check(here, tmp_path):
    assert slurm.check_slurm(Context({"PATH": str(tmp_path)})).verdict == NOT_APPLICABLE
    found = slurm.check_slurm(here(SLURM_STEP_NUM_TASKS="1", SLURM_NTASKS="1", SLURM_STEP_TASKS_PER_NODE="1"))
    assert found.verdict == OK and found.finding.startswith("Slurm step 7.0, 1 node, CPUs ")


@pytest.mark.parametrize(
    ("changes", "message", "remedy"),
    [
        ({"SLURM_STEP_NODELIST": "nid[001-"}, "unclosed bracket", "unset SLURM_STEP_NODELIST"),
        ({"SLURM_PROCID": "5"}, "SLURM_PROCID=5 is outside 0 to 1", "look for a stray export"),
        ({"RANK": "1"}, "RANK=1 is exported, but SLURM_PROCID=0", "unset RANK"),
    ],
)
def test_a_step_that_makes_no_sense_is_a_failure_with_its_remedy(here, changes, message, remedy):
    found = slurm.check_slurm(here(**changes))
    assert found.verdict == FAIL and message in found.finding and remedy in found.remedy
