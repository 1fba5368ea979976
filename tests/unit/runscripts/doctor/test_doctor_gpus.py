"""The doctor's check of GPUs, on nodes that are directories."""

import pytest
from programs import program
from pytorch_doctor import FAIL, NOT_APPLICABLE
from pytorch_doctor.checks import gpu
from tables import name, table
from variables import variables

OLD = "The NVIDIA driver on your system is too old (found version 11040)"
EIGHT = {"cuda": "13.0", "devices": ["A100"] * 8}
#: What torch reports.
FACTS = {
    "": None,
    "eight": EIGHT,
    "seven": {**EIGHT, "devices": ["A100"] * 7},
    "none": {"cuda": "13.0", "fault": OLD},
    "broken": {**EIGHT, "fault": "cuda:1: x"},
    "hip": {"hip": "7", "devices": ["MI250X"]},
}
GPUS = """
node   | module | torch  | variables               | verdict | finding                                        | remedy
dgx    |        |        |                         | n.a.    | no module for GPUs is loaded                   |
dgx    | cuda   | eight  |                         | ok      | computes on 8 of 8 GPUs, A100, with cuda 13.0  |
lumi   | rocm   | hip    | ROCR_VISIBLE_DEVICES=0  | ok      | 1 of 1 GPUs, MI250X                            |
laptop | cuda   |        | SLURM_JOB_ID=7          | FAIL    | the module is for NVIDIA GPUs, and there are none here | srun --gpus-per-node
laptop | cuda   |        | APPTAINER_CONTAINER=x FLUX_URI=7 | FAIL | and there are none here                  |
lumi   | cuda   |        | SLURM_JOB_ID=7          | FAIL    | the module is for NVIDIA GPUs, and there are none here |
# what may hide them
dgx    | cuda   | none   | CUDA_VISIBLE_DEVICES=9  | FAIL    | driver on your system is too old (found version 11040) | unset CUDA_VISIBLE_DEVICES=9
dgx    | cuda   | none   | APPTAINER_CONTAINER=x   | FAIL    | torch with cuda 13.0 does not compute          | --nv
dgx    | cuda   | broken |                         | FAIL    | does not compute: cuda:1: x                    | try another node
dgx    | cuda   |        |                         | FAIL    | torch cannot be imported to check the 8 GPUs here | see the check `torch`
dgx    | cuda   | seven  |                         | warn    | torch sees 7 of 8 GPUs, and no variable        | permission for /dev/nvidia*
dgx    | cuda   | seven  | CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6 | ok | 7 of 7 GPUs, A100                        |
"""  # noqa: E501


@pytest.mark.parametrize("row", table(GPUS), ids=name)
def test_gpus_that_are_absent_or_not_seen_are_named(at, request, row):
    here = at(
        request.getfixturevalue(row["node"]), row["module"] or None, FACTS[row["torch"]], **variables(row["variables"])
    )
    found = gpu.check_gpu(here)
    assert found.verdict == row["verdict"]
    assert row["finding"] in found.finding and row["remedy"] in found.remedy


@pytest.mark.parametrize("submit", ["sbatch", "qsub"])
def test_no_gpu_on_a_workstation_is_a_failure_and_on_a_login_node_it_is_not(at, laptop, tmp_path, submit):
    assert gpu.check_gpu(at(laptop, "cuda", PATH=str(tmp_path))).verdict == FAIL
    program(tmp_path / submit, "")
    found = gpu.check_gpu(at(laptop, "cuda", PATH=str(tmp_path)))
    assert found.verdict == NOT_APPLICABLE and "srun pytorch-doctor" in found.finding
