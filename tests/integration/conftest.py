"""Runs commands on the testbed like a user: in a shell that evaluated ``./demo --env``."""

import os
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest
from stand_in_system import System

from testbed import lifecycle, module_systems, recipes, shell
from testbed.layout import Layout, TestbedError
from testbed.recipes import CONTAINER, DATASET, VENV
from testbed.stand_ins.small_image import provide as provide_small_image
from testbed.stand_ins.systems import IN_IMAGE


class Testbed:
    """The running cluster, and shells on it."""

    def __init__(self, layout, obstacle):
        self.layout = layout
        self.obstacle = obstacle
        self.environments = {}

    def run_unchecked(self, script, *, cwd=None, timeout=900, environ=None):
        """Run a bash script in a user's shell; return the completed process, output as text."""
        lines = [script] if environ is None else [shell.program_code(self.layout), script]
        return subprocess.run(
            ["bash", "-c", "\n".join(lines)],
            cwd=cwd or self.layout.root,
            env=self.environment() if environ is None else environ,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def environment(self):
        """The environment of a shell that evaluated ``./demo --env``; shells that start from it have `module`."""
        own = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        key = tuple(sorted(own.items()))
        if key not in self.environments:
            command = ["bash", "-c", f"{shell.program_code(self.layout)}\nexec env --null"]
            shown = subprocess.run(command, env=own, stdout=subprocess.PIPE, text=True, check=True).stdout
            entries = [entry.partition("=") for entry in shown.split("\0") if entry]
            self.environments[key] = {name: value for name, _, value in entries if name != "_"}
        return self.environments[key]

    def run(self, script, **options):
        """Run a bash script that must succeed; return its standard output."""
        result = self.run_unchecked("set -e\n" + script, **options)
        assert result.returncode == 0, f"{script}\n{result.stdout}\n{result.stderr}"
        return result.stdout

    def install(self, recipe, settings=""):
        """Install a recipe after shell `settings`, or update it to this tree; return the name of its module."""
        recipes.install(self.layout, recipe, settings)
        return recipes.module(recipe)


@pytest.fixture(scope="session")
def testbed():
    """The testbed, running; ./run-tests stops it after pytest."""
    layout = Layout.from_environment(os.environ)
    return Testbed(layout, lifecycle.up(layout))


@pytest.fixture(scope="module")
def system(testbed, venv, request):
    """The system on which the recipes of a file are installed; deleted afterwards.

    Their lines start two ranks on each node with --thorough, else one: each imports torch for seconds.
    """
    with tempfile.TemporaryDirectory(prefix="system-", dir=testbed.layout.root) as directory:
        yield System(testbed, Path(directory), tasks_per_node=1 + request.config.getoption("--thorough"))


@pytest.fixture
def work(testbed):
    """A new directory that is visible on the host and in the image; deleted after the test."""
    with tempfile.TemporaryDirectory(prefix="work-", dir=testbed.layout.root) as directory:
        yield Path(directory)


@pytest.fixture
def few_images(work):
    """MNIST files of 200 and 50 images: horizontal bars whose position is the label."""
    for name, count in (("train", 200), ("t10k", 50)):
        labels = bytes(number % 10 for number in range(count))
        bars = {label: bytes(255 * (row in (2 * label, 2 * label + 1)) for row in range(28)) for label in range(10)}
        pixels = b"".join(bytes([row]) * 28 for label in labels for row in bars[label])
        size = struct.pack(">I", count)
        images = b"\0\0\x08\x03" + size + struct.pack(">II", 28, 28) + pixels
        (work / f"{name}-images-idx3-ubyte").write_bytes(images)
        (work / f"{name}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + size + labels)
    return work


@pytest.fixture(scope="session")
def mnist_files(testbed):
    """The MNIST files in $MNIST_FILES or on $EASYBUILD_SOURCEPATH."""
    if not any((Path(path) / "train-images-idx3-ubyte.gz").exists() for path in shell.source_path(testbed.layout)):
        pytest.skip("no MNIST files: neither MNIST_FILES nor EASYBUILD_SOURCEPATH names their directory")


@pytest.fixture(scope="session")
def dataset(testbed, mnist_files):
    """The MNIST module, installed."""
    return testbed.install(DATASET)


@pytest.fixture(scope="session")
def container(testbed):
    """The container module, installed."""
    if testbed.obstacle:
        pytest.skip(f"no containers here: {testbed.obstacle}")
    return testbed.install(CONTAINER)


@pytest.fixture(scope="session")
def small_image(testbed, container):
    """The image of the container module, without its packages: an eighth of the size."""
    return provide_small_image(testbed.layout)


@pytest.fixture(scope="session")
def venv(testbed):
    """The venv module, installed."""
    return testbed.install(VENV)


@pytest.fixture(scope="session")
def packages(testbed, venv):
    """Settings that bind the packages of the CPU venv, which are those of the CPU image, in the small image."""
    packages = next((testbed.layout.easybuild / "software" / venv).glob("venv/lib/python*/site-packages"))
    return f"export SINGULARITY_BIND={packages}:{IN_IMAGE}"


@pytest.fixture(params=["container", "venv"])
def module(request):
    """Each of the two modules, installed."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def enter(module):
    """The start of a command that runs with the module's Python, as in the module's help."""
    return "singularity exec $SIF " if module == recipes.module(CONTAINER) else ""


@pytest.fixture(scope="session")
def module_system(testbed):
    """A function that returns a module system by its name, "Lmod" or "Environment Modules"."""

    def find(name):
        try:
            return module_systems.find(testbed.layout, name)
        except TestbedError as error:
            pytest.skip(str(error))

    return find


@pytest.fixture(scope="session", params=["Lmod", "Environment Modules"])
def modules(request, module_system):
    """Each of the two module systems."""
    return module_system(request.param)
