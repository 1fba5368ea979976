"""The doctor's checks of GPUs and drivers, on nodes that are directories."""

import pytest
from programs import program
from pytorch_doctor import FAIL, NOT_APPLICABLE, OK, WARN
from pytorch_doctor.checks import gpu

# As NVIDIA's two kernel modules write their version (both seen in public reports of nvidia-bug-report.sh).
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Fri Feb 10 05:34:29 UTC 2023\nGCC version:  gcc 12\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (x)  Thu Sep 25 2025\n"
JOBS = [{"SLURM_JOB_ID": "7"}, *({"APPTAINER_CONTAINER": "x.sif", name: "7"} for name in ("FLUX_URI", "PBS_JOBID"))]
NONE_HERE = "the module is for NVIDIA GPUs, but there are none here"
FROM_AMD = "the module is for {} GPUs, but those here are from AMD"
NONE_SEEN, NO_TORCH = "torch sees none of the {} GPUs here", "torch cannot be imported to check the 8 GPUs here"
SOME = "{}, and no variable {} hides the others"


def tiles(count):
    """The facts of a torch that sees so many of Intel's devices."""
    return {"xpu": "20260100", "devices": ["Max 1550"] * count}


CUDA, SEVEN = {"cuda": "13.0"}, {"cuda": "13.0", "devices": ["A100"] * 7}


def test_a_module_for_cpus_has_no_gpus_to_check_and_a_login_node_no_driver(at, dgx, laptop):
    assert gpu.check_gpu(at(dgx, None)).verdict == NOT_APPLICABLE
    for node, kind in ((dgx, None), (laptop, "cuda")):
        assert gpu.check_driver(at(node, kind)).verdict == NOT_APPLICABLE


#: Node, GPUs of the module, what torch reports, variables; then verdict, finding and remedy.
GPUS = [
    ("dgx", "cuda", {"cuda": "13.0", "devices": ["A100"] * 8}, {}, OK, "8 of 8: A100", ""),
    ("lumi", "rocm", {"devices": ["MI250X"]}, {"ROCR_VISIBLE_DEVICES": "0"}, OK, "1 of 8: MI250X", ""),
    *(("laptop", "cuda", None, job, FAIL, NONE_HERE, "srun --gpus-per-node") for job in JOBS),
    ("lumi", "cuda", None, JOBS[0], FAIL, FROM_AMD.format("NVIDIA"), ""),
    # what may hide them
    ("dgx", "cuda", CUDA, {"CUDA_VISIBLE_DEVICES": "9"}, FAIL, NONE_SEEN.format(8), "unset CUDA_VISIBLE_DEVICES=9"),
    ("dgx", "cuda", CUDA, {"APPTAINER_CONTAINER": "x"}, FAIL, NONE_SEEN.format(8), "--nv"),
    ("dgx", "cuda", None, {}, FAIL, NO_TORCH, "see the check `torch`"),
    ("dgx", "cuda", SEVEN, {}, WARN, SOME.format("7 of 8: A100", "*_VISIBLE_DEVICES"), "see the check `driver`"),
    ("dgx", "cuda", SEVEN, {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6"}, OK, "7 of 8: A100", ""),
    # Intel's: tiles, or GPUs
    ("aurora", "xpu", tiles(12), {}, OK, "12 of 12: Max 1550", ""),
    ("aurora", "xpu", tiles(6), {"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, OK, "6 of 6: Max 1550", ""),
    ("aurora", "xpu", tiles(1), {"ZE_AFFINITY_MASK": "3"}, OK, "1 of 12: Max 1550", ""),
    ("aurora", "xpu", tiles(6), {}, WARN, SOME.format("6 of 12: Max 1550", "ZE_AFFINITY_MASK"), ""),
    ("aurora", "xpu", tiles(0), {"ZE_AFFINITY_MASK": "0.1"}, FAIL, NONE_SEEN.format(12), "unset ZE_AFFINITY_MASK=0.1"),
    ("lumi", "xpu", tiles(0), {}, FAIL, FROM_AMD.format("Intel"), ""),
]


@pytest.mark.parametrize(("node", "kind", "facts", "env", "verdict", "finding", "remedy"), GPUS)
def test_gpus_that_are_absent_or_not_seen_are_named(at, request, node, kind, facts, env, verdict, finding, remedy):
    found = gpu.check_gpu(at(request.getfixturevalue(node), kind, facts, **env))
    assert (found.verdict, found.finding) == (verdict, finding) and remedy in found.remedy


@pytest.mark.parametrize("submit", ["sbatch", "qsub"])
def test_no_gpu_on_a_workstation_is_a_failure_and_on_a_login_node_it_is_not(at, laptop, tmp_path, submit):
    assert gpu.check_gpu(at(laptop, "cuda", PATH=str(tmp_path))).verdict == FAIL
    program(tmp_path / submit, "")
    found = gpu.check_gpu(at(laptop, "cuda", PATH=str(tmp_path)))
    assert found.verdict == NOT_APPLICABLE and "srun pytorch-doctor" in found.finding


# Drivers

OLD = {"cuda": "12.6", "fault": "The NVIDIA driver on your system is too old (found version 11040)"}
H100 = {"cuda": "13.0", "devices": ["H100"]}
DOES_NOT = "driver 580.95.05: CUDA 13.0 does not compute: CUDA error: x"
DRIVERS = [
    *((text.format("470.57.02"), OLD, FAIL, "driver 470.57.02: CUDA 12.6", "") for text in (PROPRIETARY, OPEN)),
    # with NVIDIA's compatibility libraries an older one serves
    (PROPRIETARY.format("570.10"), H100, OK, "570.10, computes with CUDA 13.0", ""),
    (OPEN.format("580.95.05"), {**H100, "fault": "CUDA error: x"}, FAIL, DOES_NOT, "try another node"),
    ("6.12.12\n", {"hip": "6.4", "devices": ["MI250X"]}, OK, "6.12.12, computes with ROCm 6.4", ""),
    ("6.12.12\n", {"hip": "6.4", "fault": "HIP error: x"}, FAIL, "does not compute: HIP error: x", ""),
    ("1.24.7", tiles(12), OK, "1.24.7, computes with XPU 20260100", ""),
]


@pytest.mark.parametrize(("version", "facts", "verdict", "finding", "remedy"), DRIVERS)
def test_a_driver_is_judged_by_whether_torch_computes(
    at, with_files, dgx, lumi, aurora, version, facts, verdict, finding, remedy
):
    node, kind, file = dgx, "cuda", "/proc/driver/nvidia/version"
    if "hip" in facts:
        node, kind, file = lumi, "rocm", "/sys/module/amdgpu/version"
    if "xpu" in facts:
        node, kind, file = aurora, "xpu", "/sys/module/i915/version"
    found = gpu.check_driver(at(with_files({file: version}, node), kind, facts))
    assert found.verdict == verdict and finding in found.finding and remedy in found.remedy
