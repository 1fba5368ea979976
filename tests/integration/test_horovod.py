"""Horovod, compiled by its recipes for Open MPI, in a venv and in an image: the same training as with DDP."""

import re
import tempfile
from pathlib import Path

import pytest
from optional_packages import need

from testbed.packages import find_optional
from testbed.recipes import EASYCONFIGS, VERSION, module
from testbed.stand_ins.job_scripts import JOBS, submission, written
from testbed.stand_ins.systems import StandIns, sha256

# compiling Horovod takes a fifth of a whole run
pytestmark = [pytest.mark.testbed, pytest.mark.thorough]

VENV, CONTAINER = (
    next(EASYCONFIGS.glob(f"PyTorch-{VERSION}-cpu-horovod-*-{kind}.eb")).stem for kind in ("venv", "singularity")
)
#: Ranks that share a core yield it while they wait.
SETTINGS = "export OMPI_MCA_mpi_yield_when_idle=1\n"
JOB = "salloc --quiet -N2 -w nid001001,nid001002 --ntasks-per-node=2"
MPIRUN_IN_JOB = f"{JOB} {find_optional('openmpi-bin')} --map-by ppr:2:node --bind-to none"


@pytest.fixture(scope="module", params=[VENV, CONTAINER], ids=["venv", "container"])
def horovod(testbed, request):
    """The line that loads a Horovod module: the lines below are the same for both."""
    need("libopenmpi-dev", "openmpi-bin", "g++", "make")
    return f"module load {testbed.install(request.param)}"


@pytest.fixture(scope="module")
def alone(testbed, horovod):
    """The accuracy of one process after one epoch, with generated digits."""
    return accuracy(testbed.run(f"{horovod}\nsrun -n1 python $PAYLOAD/ladder/mnist_single.py --epochs 1"))


def accuracy(output):
    return float(re.search(r"^test accuracy: (\d+\.\d\d) %$", output, re.MULTILINE)[1])


def accuracy_of_job(testbed, load, script, work):
    """Submit the job script, which starts 4 ranks on 2 nodes; return the accuracy that it prints."""
    testbed.run(f"{SETTINGS}{load}\n{submission(f'{script} --epochs 1')}", cwd=work)
    ((name, text),) = written(work).items()
    assert re.fullmatch(r"horovod_pytorch-\d+\.out", name)
    assert "world size 4, Horovod" in text
    return accuracy(text)


def test_the_job_on_two_nodes_trains_to_the_accuracy_of_one_process(testbed, horovod, alone, work):
    load = f"{horovod}\nexport MODULEPATH={work}"  # without the MNIST module
    found = accuracy_of_job(testbed, load, "$PAYLOAD/jobs/infiniband/horovod_pytorch.job", work)
    assert abs(found - alone) <= 1


#: Name -> line and world: with Slurm's PMIx, whose ranks are those of MPI and whose files are in SlurmdSpoolDir; the
#: command of ml-dist; with the launcher.
LINES = {
    "srun": ("APPTAINER_BIND=/var/spool srun --mpi=pmix -N2 --ntasks-per-node=2 python", 4),
    "mpirun of apptainer": (f'{MPIRUN_IN_JOB} apptainer run "$SIF" python', 4),
    "mpirun of the launcher": (f"{MPIRUN_IN_JOB} conda-python-distributed", 4),
    "mpirun on one host": (f"{find_optional('openmpi-bin')} -np 2 --bind-to none python", 2),
    "no launcher": ("python", 1),
}


@pytest.mark.parametrize(("line", "size"), LINES.values(), ids=LINES)
def test_a_world_trains_to_the_accuracy_of_one_process(testbed, horovod, alone, line, size):
    """With generated digits: four MPI ranks on two cores would train MNIST for minutes."""
    if "$SIF" in line and "singularity" not in horovod:
        pytest.skip("a venv module has no image")
    load = f"{SETTINGS}{horovod}\nexport OMP_NUM_THREADS=1\n"
    output = testbed.run(f"{load}{line} $PAYLOAD/ladder/mnist_horovod.py --epochs 1")
    assert f"world size {size}, Horovod" in output
    assert abs(accuracy(output) - alone) <= 1


CUDA = "PyTorch-2.15.0-cuda-13.2-horovod-0.28.1-venv"


@pytest.mark.parametrize("horovod", [VENV], indirect=True)
def test_the_cuda_recipe_installs_from_stand_ins_and_its_job_reaches_the_accuracy_of_one_process(
    testbed, horovod, alone, venv, work
):
    """Wheels, NCCL and the build of Horovod are stand-ins; settings, patch and job script are real."""
    with tempfile.TemporaryDirectory(prefix="horovod-", dir=testbed.layout.root) as directory:
        stand_ins = StandIns(testbed.layout, Path(directory) / "stand-ins")
        sources = Path(directory) / "sources" / "p" / "PyTorch"
        sources.mkdir(parents=True)
        real = next(testbed.layout.easybuild.glob("sources/p/PyTorch/horovod-*.tar.gz"))
        packages = next((testbed.layout.easybuild / "software" / module(VENV)).glob("venv/lib/python*/site-packages"))
        sdist = stand_ins.horovod(real, packages)
        sdist.rename(sources / sdist.name)
        testbed.run(f"python3 -m pip download --quiet --no-deps --dest {stand_ins.wheels} setuptools==84.2.1")
        recipe = stand_ins.recipe(CUDA, (sha256(real), sha256(sources / sdist.name)))
        install = f"--installpath={directory} --buildpath={directory}/build --sourcepath={directory}/sources"
        index = f"PIP_NO_INDEX=1 PIP_FIND_LINKS={stand_ins.wheels}"
        result = testbed.run_unchecked(f"unset NCCL_PATH\n{index} eb {install} {recipe}")
        assert "$NCCL_PATH is not set" in result.stderr
        testbed.run(f"NCCL_PATH={directory} {index} eb {install} {recipe}")
        there = f"export MODULEPATH={directory}/modules/all"  # without the MNIST module
        found = accuracy_of_job(testbed, there, JOBS / "infiniband" / "horovod_pytorch.job", work)
        assert abs(found - alone) <= 1
