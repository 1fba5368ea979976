"""Demo, tests and benchmarks run with the host's Python, whatever module is loaded."""

import os
import subprocess

import pytest
from repository import TREE


@pytest.fixture
def loaded(tmp_path):
    """The environment of a shell with a loaded module whose python3 must not run."""
    command = tmp_path / "PyTorch" / "1.0" / "bin" / "python3"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\necho the module\n")
    command.chmod(0o755)
    return {"EBROOTPYTORCH": str(tmp_path / "PyTorch" / "1.0"), "PATH": f"{command.parent}:{os.environ['PATH']}"}


def output(*command, **environ):
    result = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
    return result.stdout + result.stderr


@pytest.mark.parametrize("command", ["demo", "benchmarks/run"])
def test_the_loaded_modules_python_is_passed_over(command, loaded):
    assert "usage" in output(TREE / command, "--help", **loaded).lower()


def test_a_host_without_python_is_an_error(loaded, tmp_path):
    bash = tmp_path / "bash"
    bash.symlink_to("/bin/bash")
    path = f"{loaded['EBROOTPYTORCH']}/bin:{tmp_path}"
    answer = output(TREE / "testbed" / "host-python", **{**loaded, "PATH": path})
    assert answer.startswith("host-python: python3 of the host not found on PATH. ")


def test_the_testbed_does_not_run_in_a_modules_image():
    inside = {"SIFPYTORCH": "/image.sif", "APPTAINER_CONTAINER": "/image.sif"}
    answer = output("python3", TREE / "testbed", "status", **inside)
    assert answer.startswith("testbed: python3 runs in the image of the loaded module.")
