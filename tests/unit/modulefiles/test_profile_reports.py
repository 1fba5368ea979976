"""What loading a profile reports: a driver that does not support the module's CUDA or ROCm, and a network not bound."""

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


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("bin/make-squashfs", "an earlier release installed this module. Install it again: eb --rebuild\n"),
        ("libexec/enter", "only Apptainer and Singularity can. Use the site's plugin for the program that starts this"),
        ("bin/install-kernel", None),  # a venv
    ],
)
def test_an_image_that_gets_nothing_of_the_host_is_one_sentence(tcl, tmp_path, command, fault):
    for name in ("bin", "libexec"):
        (tmp_path / name).mkdir()
    (tmp_path / command).touch()
    module = {"CONTAINERROOT": str(tmp_path), "PYTORCH_HOST_NETWORK_FILES": "/opt/libfabric.so.1"}
    output = report(tcl, "", "PYTORCH_HOST_NETWORK", "1", **module)
    assert output.count("\n") == bool(fault)
    assert output.startswith(f"PyTorch: host network: nothing is bound: {fault}" if fault else "")
    assert report(tcl, "", "PYTORCH_HOST_NETWORK", "0", **module) == ""


def test_a_library_of_the_list_that_is_gone_is_one_sentence_and_nothing_is_bound(tcl, tmp_path):
    listed = tmp_path / "provenance" / "host-network"
    listed.parent.mkdir()
    listed.write_text("/opt/*.so\n1 /usr\n1 /opt/gone.so.1\nreplace /opt/other.so\n")
    variables = {"CONTAINERROOT": str(tmp_path), "PYTORCH_HOST_NETWORK_FILES": "/opt/*.so"}
    gone = "PyTorch: host network: nothing is bound: {} is gone. Install the module again: eb --rebuild\n"
    assert report(tcl, "", "PYTORCH_HOST_NETWORK", "1", **variables) == gone.format("/opt/gone.so.1")
    assert report(tcl, "", "PYTORCH_HOST_NETWORK", "replace", **variables) == gone.format("/opt/other.so")


def test_without_a_pytorch_module_the_hosts_libraries_have_no_image(tcl):
    output = report(tcl, None, "PYTORCH_HOST_NETWORK", "1", PYTORCH_HOST_NETWORK_FILES="/usr/lib64/libcxi.so.1")
    fault = "nothing is bound: cluster/here is loaded without a PyTorch module. Unload it, and load a PyTorch module"
    assert output.startswith(f"PyTorch: host network: {fault}")
