"""Runs commands on the testbed as a user would: in a shell that evaluated ``./demo --env``."""

import os
import subprocess
from pathlib import Path

import pytest
from testbed import lifecycle, shell, slurm
from testbed.layout import Layout

TREE = Path(__file__).resolve().parents[2]
CONTAINER = "PyTorch/2.13.0-cpu-singularity"
VENV = "PyTorch/2.13.0-cpu-venv"
DATASET = "MNIST/1998"


class Testbed:
    """The running cluster, and what a shell on it says."""

    def __init__(self, layout, obstacle):
        self.layout = layout
        self.obstacle = obstacle

    def run_unchecked(self, script, *, cwd=None, timeout=300, environ=None):
        """Run a bash script in a user's shell; return the completed process, output as text."""
        lines = [shell.environment_code(self.layout), script]
        return subprocess.run(
            ["bash", "-c", "\n".join(lines)],
            cwd=cwd or self.layout.root, env=environ, timeout=timeout, check=False,
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip

    def run(self, script, **options):
        """Run a bash script that must succeed; return its standard output."""
        result = self.run_unchecked("set -e\n" + script, **options)
        assert result.returncode == 0, f"{script}\n{result.stdout}\n{result.stderr}"
        return result.stdout

    def install(self, module):
        """Install a module of this tree with EasyBuild, unless the current one is installed."""
        recipe = module.replace("/", "-", 1) + ".eb"
        self.run(f"eb {recipe}", timeout=900)


@pytest.fixture(scope="session")
def testbed():
    """The testbed, up; stopped again after the tests unless it was up before them."""
    layout = Layout.from_environment(os.environ)
    was_up = slurm.responding(layout)
    bed = Testbed(layout, lifecycle.up(layout))
    yield bed
    if not was_up:
        slurm.stop(layout)


@pytest.fixture(scope="session")
def dataset(testbed):
    """The MNIST module, installed from the files in $EASYBUILD_SOURCEPATH or beside this checkout."""
    if not any((Path(path) / "train-images-idx3-ubyte.gz").exists() for path in shell.source_path(testbed.layout)):
        pytest.skip("the MNIST files are not on EASYBUILD_SOURCEPATH and not in ../shared/mnist")
    testbed.install(DATASET)
    return DATASET


@pytest.fixture(scope="session")
def container(testbed):
    """The container module, installed."""
    if testbed.obstacle:
        pytest.skip(f"no containers here: {testbed.obstacle}")
    testbed.install(CONTAINER)
    return CONTAINER


@pytest.fixture(scope="session")
def venv(testbed):
    """The venv module, installed."""
    testbed.install(VENV)
    return VENV


@pytest.fixture(params=["container", "venv"])
def module(request):
    """Each of the two modules, installed."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def enter(module):
    """What stands before a command to run it with the module's Python, as the module's help says."""
    return "singularity exec $SIF " if module == CONTAINER else ""
