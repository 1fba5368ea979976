"""What loading a profile reports if PYTORCH_HOST_NETWORK is set and the module has no program for it."""

import pytest


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("enter-image", "nothing is bound: an earlier release installed this module. Install it again: eb --rebuild"),
        (
            "enter",
            "nothing is bound: only Apptainer and Singularity can. Use the site's plugin for the "
            "program that starts this image",
        ),
        ("install-kernel", ""),
    ],
    ids=["earlier release", "another program", "venv"],
)
def test_an_image_that_gets_nothing_of_the_host_is_one_sentence(report, tmp_path, command, sentence):
    (tmp_path / "libexec").mkdir()
    (tmp_path / "libexec" / command).touch()
    output = report(
        "", "PYTORCH_HOST_NETWORK", "1", CONTAINERROOT=str(tmp_path), PYTORCH_HOST_NETWORK_FILES="/opt/libfabric.so.1"
    )
    assert output == (sentence and f"PyTorch: host network: {sentence}\n")
    off = {"CONTAINERROOT": str(tmp_path), "PYTORCH_HOST_NETWORK_FILES": "/opt/libfabric.so.1"}
    assert report("", "PYTORCH_HOST_NETWORK", "0", **off) == ""


def test_without_a_pytorch_module_the_hosts_libraries_have_no_image_and_no_program_of_this_directory_runs(
    report, tmp_path
):
    program = tmp_path / "libexec" / "host-network.py"
    program.parent.mkdir()
    program.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert report(None, "PYTORCH_HOST_NETWORK", "1", PYTORCH_HOST_NETWORK_FILES="/usr/lib64/libcxi.so.1") == (
        "PyTorch: host network: nothing is bound: cluster/here is loaded without a PyTorch module. Unload it, and load "
        "a PyTorch module, which loads it\n"
    )
    assert not (tmp_path / "ran").exists()
