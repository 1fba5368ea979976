"""The doctor's check of GPUs, on nodes that are directories."""

import pytest
from programs import program
from pytorch_doctor import FAIL, NOT_APPLICABLE, OK, WARN
from pytorch_doctor.checks import gpu

JOBS = [{"SLURM_JOB_ID": "7"}, *({"APPTAINER_CONTAINER": "x.sif", name: "7"} for name in ("FLUX_URI", "PBS_JOBID"))]
NONE_HERE = "the module is for NVIDIA GPUs, and there are none here"
NO_TORCH = "torch cannot be imported to check the 8 GPUs here"
OLD = "The NVIDIA driver on your system is too old (found version 11040)"
EIGHT = {"cuda": "13.0", "devices": ["A100"] * 8}
SEVEN = {"cuda": "13.0", "devices": ["A100"] * 7}
NONE_SEEN = {"cuda": "13.0", "fault": OLD}
#: Node, GPUs of the module, what torch reports, variables; then verdict, finding and remedy.
GPUS = [
    ("dgx", None, None, {}, NOT_APPLICABLE, "no module for GPUs is loaded", ""),
    ("dgx", "cuda", EIGHT, {}, OK, "computes on 8 of 8 GPUs, A100, with cuda 13.0", ""),
    ("lumi", "rocm", {"hip": "7", "devices": ["MI250X"]}, {"ROCR_VISIBLE_DEVICES": "0"}, OK, "1 of 1 GPUs, MI250X", ""),
    *(("laptop", "cuda", None, job, FAIL, NONE_HERE, "srun --gpus-per-node") for job in JOBS),
    ("lumi", "cuda", None, JOBS[0], FAIL, NONE_HERE, ""),
    # what may hide them
    ("dgx", "cuda", NONE_SEEN, {"CUDA_VISIBLE_DEVICES": "9"}, FAIL, OLD, "unset CUDA_VISIBLE_DEVICES=9"),
    ("dgx", "cuda", NONE_SEEN, {"APPTAINER_CONTAINER": "x"}, FAIL, "torch with cuda 13.0 does not compute", "--nv"),
    ("dgx", "cuda", {**EIGHT, "fault": "cuda:1: x"}, {}, FAIL, "does not compute: cuda:1: x", "try another node"),
    ("dgx", "cuda", None, {}, FAIL, NO_TORCH, "see the check `torch`"),
    ("dgx", "cuda", SEVEN, {}, WARN, "torch sees 7 of 8 GPUs, and no variable", "permission for /dev/nvidia*"),
    ("dgx", "cuda", SEVEN, {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6"}, OK, "7 of 7 GPUs, A100", ""),
]


@pytest.mark.parametrize(("node", "kind", "facts", "env", "verdict", "finding", "remedy"), GPUS)
def test_gpus_that_are_absent_or_not_seen_are_named(at, request, node, kind, facts, env, verdict, finding, remedy):
    found = gpu.check_gpu(at(request.getfixturevalue(node), kind, facts, **env))
    assert (found.verdict, finding in found.finding, remedy in found.remedy) == (verdict, True, True), found


@pytest.mark.parametrize("submit", ["sbatch", "qsub"])
def test_no_gpu_on_a_workstation_is_a_failure_and_on_a_login_node_it_is_not(at, laptop, tmp_path, submit):
    assert gpu.check_gpu(at(laptop, "cuda", PATH=str(tmp_path))).verdict == FAIL
    program(tmp_path / submit, "")
    found = gpu.check_gpu(at(laptop, "cuda", PATH=str(tmp_path)))
    assert found.verdict == NOT_APPLICABLE and "srun pytorch-doctor" in found.finding
