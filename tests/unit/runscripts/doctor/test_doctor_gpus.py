"""The doctor's checks of GPUs and drivers, on nodes that are directories."""

import pytest
from pytorch_doctor import FAIL, NOT_APPLICABLE, OK, WARN
from pytorch_doctor.checks import gpu

# As NVIDIA's two kernel modules write their version (both seen in public reports of nvidia-bug-report.sh).
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Fri Feb 10 05:34:29 UTC 2023\nGCC version:  gcc 12\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (x)  Thu Sep 25 2025\n"
IN_A_JOB = {"SLURM_JOB_ID": "7"}


# GPUs


def test_a_module_for_cpus_has_no_gpus_to_check(at, dgx):
    assert gpu.check_gpu(at(dgx, None)).verdict == NOT_APPLICABLE
    assert gpu.check_driver(at(dgx, None)).verdict == NOT_APPLICABLE


def test_gpus_that_torch_sees_are_fine(at, dgx, lumi):
    found = gpu.check_gpu(at(dgx, "cuda", {"cuda": "13.0", "devices": ["A100"] * 8}))
    assert (found.verdict, found.finding) == (OK, "8 of 8: A100")
    found = gpu.check_gpu(at(lumi, "rocm", {"hip": "7.0", "devices": ["MI250X"]}, ROCR_VISIBLE_DEVICES="0"))
    assert (found.verdict, found.finding) == (OK, "1 of 8: MI250X")


def test_no_gpu_in_a_job_is_a_failure(at, laptop):
    found = gpu.check_gpu(at(laptop, "cuda", **IN_A_JOB))
    assert (found.verdict, found.finding) == (FAIL, "the module is for NVIDIA GPUs, but there are none here")
    assert "srun --gpus-per-node" in found.remedy


@pytest.mark.parametrize("job", [{"FLUX_URI": "local:///run/flux"}, {"PBS_JOBID": "7.pbs"}], ids=["Flux", "PBS"])
def test_no_gpu_in_an_image_is_a_failure_in_jobs_of_other_schedulers_too(at, laptop, job):
    found = gpu.check_gpu(at(laptop, "cuda", APPTAINER_CONTAINER="x.sif", **job))
    assert (found.verdict, found.finding) == (FAIL, "the module is for NVIDIA GPUs, but there are none here")


@pytest.mark.parametrize("submit", ["sbatch", "qsub"])
def test_no_gpu_on_a_workstation_is_a_failure_and_on_a_login_node_it_is_not(at, laptop, tmp_path, submit):
    assert gpu.check_gpu(at(laptop, "cuda", PATH=str(tmp_path))).verdict == FAIL
    (tmp_path / submit).write_text("#!/bin/sh\n")
    (tmp_path / submit).chmod(0o755)
    found = gpu.check_gpu(at(laptop, "cuda", PATH=str(tmp_path)))
    assert found.verdict == NOT_APPLICABLE
    assert "srun pytorch-doctor" in found.finding


def test_gpus_of_the_other_vendor_are_a_failure(at, lumi):
    found = gpu.check_gpu(at(lumi, "cuda", **IN_A_JOB))
    assert (found.verdict, found.finding) == (FAIL, "the module is for NVIDIA GPUs, but those here are from AMD")


def test_gpus_that_torch_does_not_see_are_a_failure_that_names_what_may_hide_them(at, dgx):
    hidden = at(dgx, "cuda", {"cuda": "13.0"}, CUDA_VISIBLE_DEVICES="9")
    assert gpu.check_gpu(hidden).finding == "torch sees none of the 8 GPUs here"
    assert gpu.check_gpu(hidden).remedy == "correct or unset CUDA_VISIBLE_DEVICES=9"
    in_image = at(dgx, "cuda", {"cuda": "13.0"}, APPTAINER_CONTAINER="x.sif")
    assert "--nv" in gpu.check_gpu(in_image).remedy
    assert gpu.check_gpu(at(dgx, "cuda")).remedy == "see the check `torch`"


def test_fewer_gpus_than_the_node_shows_are_a_warning_unless_a_variable_hides_them(at, dgx):
    seven = {"cuda": "13.0", "devices": ["A100"] * 7}
    found = gpu.check_gpu(at(dgx, "cuda", seven))
    assert found.verdict == WARN
    assert found.finding == "7 of 8: A100, and no variable *_VISIBLE_DEVICES hides the others"
    assert gpu.check_gpu(at(dgx, "cuda", seven, CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6")).verdict == OK


# Drivers


@pytest.mark.parametrize("text", [PROPRIETARY, OPEN])
def test_a_driver_that_is_too_old_is_told_by_its_version(at, with_files, dgx, text):
    node = with_files({"/proc/driver/nvidia/version": text.format("470.57.02")}, dgx)
    found = gpu.check_driver(at(node, "cuda", {"cuda": "12.6"}))
    assert (found.verdict, found.finding) == (
        FAIL,
        "driver 470.57.02 is too old for CUDA 12.6, which needs 525 or newer",
    )
    assert "older CUDA" in found.remedy


def test_a_driver_with_which_torch_computes_is_fine_whatever_its_version(at, with_files, dgx):
    node = with_files({"/proc/driver/nvidia/version": PROPRIETARY.format("570.10")}, dgx)
    # with NVIDIA's compatibility libraries an older one serves
    found = gpu.check_driver(at(node, "cuda", {"cuda": "13.0", "devices": ["H100"]}))
    assert (found.verdict, found.finding) == (OK, "570.10, computes with CUDA 13.0")


def test_a_driver_with_which_torch_does_not_compute_is_a_failure_with_torchs_words(at, with_files, dgx):
    node = with_files({"/proc/driver/nvidia/version": OPEN.format("580.95.05")}, dgx)
    found = gpu.check_driver(at(node, "cuda", {"cuda": "13.0", "devices": ["H100"], "fault": "CUDA error: x"}))
    assert found.verdict == FAIL
    assert found.finding == "driver 580.95.05: CUDA 13.0 does not compute: CUDA error: x"


def test_amds_driver_is_checked_by_whether_torch_computes(at, with_files, lumi):
    node = with_files({"/sys/module/amdgpu/version": "6.12.12\n"}, lumi)
    assert gpu.check_driver(at(node, "rocm", {"hip": "6.4", "devices": ["MI250X"]})).verdict == OK
    found = gpu.check_driver(at(node, "rocm", {"hip": "6.4", "fault": "HIP error: invalid device function"}))
    assert (found.verdict, "HIP error" in found.finding) == (FAIL, True)


def test_no_driver_is_nothing_to_check(at, laptop):
    assert gpu.check_driver(at(laptop, "cuda")).verdict == NOT_APPLICABLE


# What AMD's wheels write: https://download.pytorch.org/whl/rocm6.0
ROCM_6_0 = {"hip": "6.0.32830-d62f6a171", "devices": ["MI250X"]}


def test_a_rocm_that_the_sites_driver_no_longer_supports_is_a_warning_even_if_it_computes(at, with_files, lumi):
    node = with_files({"/sys/module/amdgpu/version": "6.10.5"}, lumi)
    found = gpu.check_driver(at(node, "rocm", ROCM_6_0, PYTORCH_DRIVER_ROCM="6.1-7.0"))
    assert found.verdict == WARN
    assert found.finding == (
        "6.10.5, computes with ROCm 6.0.32830-d62f6a171; torch is built for ROCm 6.0, and the site's driver supports "
        "6.1 to 7.0 (PYTORCH_DRIVER_ROCM)"
    )
    assert found.remedy == "load a module for a supported ROCm: module avail PyTorch"


def test_a_login_node_without_a_driver_reports_it_too(at, laptop):
    found = gpu.check_driver(at(laptop, "rocm", {"hip": "5.4.2"}, PYTORCH_DRIVER_ROCM="6.1-7.0"))
    assert found.verdict == WARN
    assert "torch is built for ROCm 5.4" in found.finding


def test_it_is_a_failure_where_torch_does_not_compute(at, with_files, lumi):
    node = with_files({"/sys/module/amdgpu/version": "6.10.5"}, lumi)
    found = gpu.check_driver(at(node, "rocm", {**ROCM_6_0, "fault": "HIP error: x"}, PYTORCH_DRIVER_ROCM="6.1-7.0"))
    assert found.verdict == FAIL
    assert "HIP error: x; torch is built for ROCm 6.0" in found.finding


@pytest.mark.parametrize("supported", ["6.0-7.0", "6-7", "5.7-6.0", "", "yes", None])
def test_a_rocm_within_the_range_and_a_profile_without_one_change_nothing(at, with_files, lumi, supported):
    node = with_files({"/sys/module/amdgpu/version": "6.10.5"}, lumi)
    env = {} if supported is None else {"PYTORCH_DRIVER_ROCM": supported}
    assert gpu.check_driver(at(node, "rocm", ROCM_6_0, **env)).verdict == OK


def test_the_range_is_that_of_the_modules_kind(at, with_files, dgx):
    node = with_files({"/proc/driver/nvidia/version": PROPRIETARY.format("580.105.08")}, dgx)
    env = {"PYTORCH_DRIVER_ROCM": "6.1-7.0", "PYTORCH_DRIVER_CUDA": "11-13"}
    assert gpu.check_driver(at(node, "cuda", {"cuda": "13.2", "devices": ["A100"]}, **env)).verdict == OK
    found = gpu.check_driver(at(node, "cuda", {"cuda": "14.0", "devices": ["A100"]}, **env))
    assert "torch is built for CUDA 14.0, and the site's driver supports 11 to 13" in found.finding


@pytest.mark.parametrize(
    ("version", "oldest", "newest", "expected"),
    [
        ("6.0", "6.1", "7.0", False),
        ("6.1", "6.1", "7.0", True),
        ("7.0.2", "6.1", "7.0", True),
        ("7.1", "6.1", "7.0", False),
        ("6.10", "6.2", "7", True),
        ("13.2", "11", "13", True),
        ("10.2", "11", "13", False),
    ],
)
def test_versions_are_numbers_and_an_end_counts_as_far_as_it_goes(version, oldest, newest, expected):
    assert gpu.is_within(version, oldest, newest) is expected
