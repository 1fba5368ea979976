"""Makes `pytorch_launch` importable for the tests of the runscripts, describes Slurm steps, and builds nodes."""

import shutil
import subprocess
import sys
from pathlib import Path

import node_trees
import pytest
from variables import variables

RUNSCRIPTS = Path(__file__).parents[3] / "runscripts"
sys.path.insert(0, str(RUNSCRIPTS))


@pytest.fixture
def runscripts():
    """The directory of the commands."""
    return RUNSCRIPTS


@pytest.fixture
def packed(runscripts, tmp_path_factory):
    """The runscripts of an installation that has compiled them for this Python."""
    root = tmp_path_factory.mktemp("packed")
    shutil.copytree(runscripts, root / "runscripts", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "payload" / "training").mkdir(parents=True)
    program = runscripts.parent / "easyblocks" / "pytorch_install" / "programs" / "compile_tree.py"
    with program.open() as program:
        subprocess.run([sys.executable, "-I", "-", root], stdin=program, check=True, timeout=300)
    return root / "runscripts"


@pytest.fixture
def step():
    """The variables of task 3 of `srun -N2 --ntasks-per-node=2`, step 0 of job 7, Slurm 22.05.

    The job holds one more node, in front: a step is not its job.
    """
    return variables(
        "SLURM_JOB_ID=7 SLURM_JOB_NODELIST=nid[001001-001003] SLURM_NODELIST=nid[001001-001003] SLURM_NTASKS=4 "
        "SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_STEP_NODELIST=nid[001002-001003] SLURM_STEP_NUM_NODES=2 "
        "SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=1 "
        "SLURM_CPUS_ON_NODE=8 SLURMD_NODENAME=nid001003"
    )


@pytest.fixture
def batch_script():
    """The variables of a batch script of that job before any srun, Slurm 22.05."""
    return variables(
        "SLURM_JOB_ID=7 SLURM_JOB_NODELIST=nid[001001-001003] SLURM_NODELIST=nid[001001-001003] SLURM_NTASKS=4 "
        "SLURM_NPROCS=4 SLURM_TASKS_PER_NODE=2,1(x2) SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 "
        "SLURM_CPUS_ON_NODE=8 SLURMD_NODENAME=nid001001"
    )


@pytest.fixture(scope="session")
def lumi(tmp_path_factory):
    return node_trees.lumi_g(tmp_path_factory.mktemp("lumi"))


@pytest.fixture(scope="session")
def frontier(tmp_path_factory):
    return node_trees.frontier(tmp_path_factory.mktemp("frontier"))


@pytest.fixture(scope="session")
def perlmutter(tmp_path_factory):
    return node_trees.perlmutter(tmp_path_factory.mktemp("perlmutter"))


@pytest.fixture(scope="session")
def aurora(tmp_path_factory):
    return node_trees.aurora(tmp_path_factory.mktemp("aurora"))


@pytest.fixture(scope="session")
def dgx(tmp_path_factory):
    return node_trees.dgx_a100(tmp_path_factory.mktemp("dgx"))


@pytest.fixture(scope="session")
def virtual_machine(tmp_path_factory):
    return node_trees.virtual_machine(tmp_path_factory.mktemp("virtual_machine"))


@pytest.fixture(scope="session")
def laptop(tmp_path_factory):
    return node_trees.laptop(tmp_path_factory.mktemp("laptop"))
