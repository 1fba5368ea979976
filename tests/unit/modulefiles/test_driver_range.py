"""What loading a profile reports if the site's driver does not support the CUDA or ROCm of the PyTorch module."""

import pytest


def test_a_rocm_that_is_too_old_is_one_sentence_with_the_range_and_a_remedy(report):
    assert report("ROCm 6.0", "PYTORCH_DRIVER_ROCM", "6.1-7.0") == (
        "PyTorch: this module is built for ROCm 6.0, and the site's driver supports 6.1 to 7.0 (PYTORCH_DRIVER_ROCM, "
        "cluster/here). Load a module for one of these: module avail PyTorch\n"
    )


@pytest.mark.parametrize(
    ("runtime", "supported"),
    [("ROCm 5.4", "6.1-7.0"), ("ROCm 7.1", "6.1-7.0"), ("ROCm 7.13", "6.2-7.2"), ("ROCm 6.9", "6.10-7")],
)
def test_versions_outside_the_range_are_reported(report, runtime, supported):
    assert f"built for {runtime}, " in report(runtime, "PYTORCH_DRIVER_ROCM", supported)


@pytest.mark.parametrize(
    ("runtime", "supported"),
    [("ROCm 6.1", "6.1-7.0"), ("ROCm 7.0", "6.1-7.0"), ("ROCm 6.10", "6.2-7"), ("ROCm 6.2", "6.2.4-7.2")],
)
def test_versions_within_the_range_are_not(report, runtime, supported):
    assert report(runtime, "PYTORCH_DRIVER_ROCM", supported) == ""


def test_each_kind_of_gpu_has_a_range_of_its_own(report):
    assert report("CUDA 13.2", "PYTORCH_DRIVER_ROCM", "6.1-7.0") == ""
    assert report("CUDA 13.2", "PYTORCH_DRIVER_CUDA", "11-13") == ""
    assert "built for CUDA 14.0, and the site's driver supports 11 to 13" in report(
        "CUDA 14.0", "PYTORCH_DRIVER_CUDA", "11-13"
    )


def test_nothing_is_reported_without_a_pytorch_module_and_for_other_variables(report):
    assert report(None, "PYTORCH_DRIVER_ROCM", "6.1-7.0") == ""
    assert report("none", "PYTORCH_DRIVER_ROCM", "6.1-7.0") == ""
    assert report("ROCm 6.0", "PYTORCH_FAST_NETWORK", "6.1-7.0") == ""


@pytest.mark.parametrize("mode", ["unload", "remove", "display", "spider", "help"])
def test_only_loading_reports(report, mode):
    assert report("ROCm 6.0", "PYTORCH_DRIVER_ROCM", "6.1-7.0", mode=mode) == ""


def test_what_the_user_exported_takes_precedence_and_an_empty_range_reports_nothing(report):
    assert report("ROCm 6.0", "PYTORCH_DRIVER_ROCM", "6.1-7.0", PYTORCH_DRIVER_ROCM="") == ""
    assert "supports 6.3 to 7.2" in report("ROCm 6.0", "PYTORCH_DRIVER_ROCM", "6.1-7.0", PYTORCH_DRIVER_ROCM="6.3-7.2")


def test_a_value_that_is_no_range_reports_nothing(report):
    assert report("ROCm 6.0", "PYTORCH_DRIVER_ROCM", "6.1") == ""
