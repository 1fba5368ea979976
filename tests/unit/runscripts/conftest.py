"""Makes `pytorch_launch` importable for the tests of the runscripts, describes Slurm steps, and builds nodes."""

import shutil
import subprocess
import sys
from pathlib import Path

import node_trees
import pytest
from variables import BATCH_SCRIPT, RANK_0, STEP

RUNSCRIPTS = Path(__file__).parents[3] / "runscripts"
sys.path.insert(0, str(RUNSCRIPTS))


@pytest.fixture
def runscripts():
    """The directory of the commands."""
    return RUNSCRIPTS


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """An installation that has compiled its runscripts for this Python."""
    root = tmp_path_factory.mktemp("compiled")
    shutil.copytree(RUNSCRIPTS, root / "runscripts", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "payload" / "training").mkdir(parents=True)
    program = RUNSCRIPTS.parent / "easyblocks" / "pytorch_install" / "programs" / "compile_tree.py"
    with program.open() as program:
        subprocess.run([sys.executable, "-I", "-", root], stdin=program, check=True, timeout=300)
    return root


@pytest.fixture
def installed(compiled, tmp_path):
    """The runscripts of that installation, for tests that change them."""
    return shutil.copytree(compiled, tmp_path / "installed", symlinks=True) / "runscripts"


@pytest.fixture
def step():
    """The variables of task 3 of a step."""
    return dict(STEP)


@pytest.fixture
def first():
    """The variables of the first task of that step."""
    return {**STEP, **RANK_0}


@pytest.fixture
def batch_script():
    """The variables of a batch script of that job."""
    return dict(BATCH_SCRIPT)


def node_fixture(name, make):
    """A fixture: the root of a node that `make` writes."""
    return pytest.fixture(scope="session", name=name)(lambda tmp_path_factory: make(tmp_path_factory.mktemp(name)))


lumi = node_fixture("lumi", node_trees.lumi_g)
frontier = node_fixture("frontier", node_trees.frontier)
perlmutter = node_fixture("perlmutter", node_trees.perlmutter)
dgx = node_fixture("dgx", node_trees.dgx_a100)
gh200 = node_fixture("gh200", node_trees.gh200)
virtual_machine = node_fixture("virtual_machine", node_trees.virtual_machine)
laptop = node_fixture("laptop", node_trees.laptop)
