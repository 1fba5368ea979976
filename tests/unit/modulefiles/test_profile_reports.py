"""What loading a profile reports: a driver that does not support the module's CUDA or ROCm."""

import pytest

ROCM = "PYTORCH_DRIVER_ROCM"


def report(tcl, runtime, name, value, **env):
    """Load a profile of one line; returns what is on standard error."""
    if runtime:
        env["__PYTORCH_RUNTIME"] = runtime
    result = tcl(f"policy {name} {{{value}}}", **env)
    assert result.stdout == ""
    return result.stderr


@pytest.mark.parametrize(
    ("runtime", "name", "supported", "is_reported"),
    [
        ("ROCm 5.4", ROCM, "6.1-7.0", True),
        ("ROCm 7.13", ROCM, "6.2-7.2", True),
        ("ROCm 6.9", ROCM, "6.10-7", True),
        ("CUDA 14.0", "PYTORCH_DRIVER_CUDA", "11-13", True),
        ("ROCm 6.1", ROCM, "6.1-7.0", False),
        ("ROCm 6.10", ROCM, "6.2-7", False),
        ("ROCm 6.2", ROCM, "6.2.4-7.2", False),
        ("CUDA 13.2", "PYTORCH_DRIVER_CUDA", "11-13", False),
        ("CUDA 13.2", ROCM, "6.1-7.0", False),
        ("ROCm 6.0", "PYTORCH_FAST_NETWORK", "6.1-7.0", False),
        ("ROCm 6.0", ROCM, "6.1", False),
        ("none", ROCM, "6.1-7.0", False),
        (None, ROCM, "6.1-7.0", False),
    ],
)
def test_versions_outside_the_range_of_their_kind_are_reported(tcl, runtime, name, supported, is_reported):
    assert (f"built for {runtime}, " in report(tcl, runtime, name, supported)) is is_reported


def test_what_the_user_exported_takes_precedence_and_an_empty_range_reports_nothing(tcl):
    assert report(tcl, "ROCm 6.0", ROCM, "6.1-7.0", PYTORCH_DRIVER_ROCM="") == ""
    assert "supports 6.3 to 7.2" in report(tcl, "ROCm 6.0", ROCM, "6.1-7.0", PYTORCH_DRIVER_ROCM="6.3-7.2")
