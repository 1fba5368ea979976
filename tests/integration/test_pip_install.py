"""`pip install` of the tree, then `eb --use-entrypoints`: installed, loaded and trained with, without the checkout."""

import os
import sys

import pytest
from repository import TREE

from testbed.recipes import DATASET, VENV, module

pytestmark = [pytest.mark.testbed, pytest.mark.thorough]


@pytest.fixture(scope="module")
def eb(testbed, tmp_path_factory):
    """A function that runs `eb` of an environment with EasyBuild and the wheel of the tree; returns its output."""
    directory = tmp_path_factory.mktemp("pip")
    environment = directory / "eb"
    python = testbed.layout.bin / "python3.11"  # `eb` refuses one in root's home
    if not python.exists():
        python = sys.executable
    testbed.run(f"{python} -m venv {environment}")
    locked = TREE / "testbed" / "environments" / "requirements.txt"
    # without PYTHONPATH and EasyBuild's settings of the testbed's shell: as in a login shell
    pip = f"env -u PIP_CONSTRAINT {environment}/bin/pip install --quiet"
    testbed.run(f"{pip} -r {locked}\n{pip} {TREE}", cwd="/")
    sources = testbed.layout.easybuild / "sources"

    def run(command):
        script = f"""
            module unload pytorch-easybuild
            unset ${{!EASYBUILD_@}} PYTHONPATH EB_PYTHON
            export EASYBUILD_ALLOW_USE_AS_ROOT_AND_ACCEPT_CONSEQUENCES=1 EASYBUILD_PREFIX={directory}/prefix
            export EASYBUILD_SOURCEPATH={directory}/prefix/sources:{sources}
            export EASYBUILD_SOURCEPATH_DATA={sources}:{os.environ.get("MNIST_FILES", "")}
            source {environment}/bin/activate
            {command}
            """
        return testbed.run(script, cwd="/")

    run.prefix = directory / "prefix"
    return run


def test_easybuild_lists_the_easyblocks_of_the_wheel(eb):
    listed = eb("eb --use-entrypoints --list-easyblocks")
    for name in ("ContainerImage", "LockedVenv", "EB_PyTorchContainer", "EB_PyTorchVenv", "EB_PyTorchShifter"):
        assert f"|-- {name}\n" in listed


def test_a_recipe_is_installed_in_any_directory_and_trains_on_two_nodes(testbed, eb, mnist_files):
    eb(f"eb --use-entrypoints {DATASET}.eb {VENV}.eb")
    output = testbed.run(
        f"""module unload pytorch-easybuild
        module use {eb.prefix}/modules/all
        module load {module(DATASET)} {module(VENV)}
        srun -N2 --ntasks-per-node=1 conda-python-distributed -u $PAYLOAD/mnist_ddp.py --epochs 1""",
        cwd="/",
    )
    assert "world size 2" in output
    assert "60000 training and 10000 test images" in output
