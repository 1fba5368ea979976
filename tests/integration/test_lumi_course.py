"""The page of LUMI's training course (Demo2), command by command, with the testbed for LUMI and without GPU flags.

What only LUMI has is replaced: the image (the CPU image under its name), the modules LUMI, partition, EasyBuild-user
and systools, the downloads of the training script and its data, conda in the image. Everything else is as on the page.
"""

import re
import shutil
import tempfile
from pathlib import Path

import pytest

from testbed.stand_ins.job_scripts import submission
from testbed.stand_ins.systems import StandIns

pytestmark = pytest.mark.testbed

RECIPE = "PyTorch-2.3.1-rocm-6.0.3-python-3.12-singularity-20240923"
MODULE = RECIPE.replace("-", "/", 1)
IMAGE = "lumi-pytorch-rocm-6.0.3-python-3.12-pytorch-v2.3.1-dockerhash-2c1c14cafd28.sif"
LOAD = f"module purge\nmodule load LUMI/24.03\nmodule load {MODULE}\n"

#: Prints the Python of a shell in the image.
SHELL = "echo 'which python; exit' | singularity shell $SIF"

#: The page's job script without GPUs, LUMI's partition and memory, and the masks of its cores.
JOB = f"""#!/bin/bash -e
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --output="output_%x_%j.txt"
#SBATCH --time=5:00

module load LUMI/24.03
module load {MODULE}

cd mnist
srun --ntasks=$((SLURM_NNODES*1)) \\
  singularity exec $SIFPYTORCH \\
    conda-python-distributed -u mnist_DDP.py --modelpath model
"""


class Course:
    """The directory of the page, and login shells in it."""

    def __init__(self, testbed, directory):
        self.testbed = testbed
        self.stand_ins = StandIns(testbed.layout, directory / "stand-ins")
        self.installdir = directory / "DEMO2"
        binds = f"{self.stand_ins.version('2.3.1+rocm6.0')},{self.stand_ins.conda()}"
        # a login shell does not have the testbed's bootstrap module
        self.site = f"""module unload pytorch-easybuild
export SINGULARITY_BIND={binds} EASYBUILD_INSTALLPATH={directory}/EasyBuild
export EASYBUILD_SOURCEPATH={directory}/sources
module use {testbed.layout.repository}/modulefiles {self.stand_ins.modulefiles} {directory}/EasyBuild/modules/all
installdir={self.installdir}
"""
        for name in ("LUMI/24.03", "partition/container", "systools/24.03"):
            self.stand_ins.module(name)
        (self.stand_ins.modulefiles / "EasyBuild-user").write_text("#%Module\nmodule load pytorch-easybuild\n")

    def run(self, script):
        """Run commands of the page in a new login shell in its directory; return their output."""
        self.installdir.mkdir(exist_ok=True)
        return self.testbed.run(self.site + script, cwd=self.installdir, timeout=1800)


@pytest.fixture(scope="module")
def course(testbed, container, venv):
    """The course after step 2: the module is installed. Deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="course-", dir=testbed.layout.root) as directory:
        course = Course(testbed, Path(directory))
        course.stand_ins.image(IMAGE)
        recipe = course.stand_ins.recipe(
            RECIPE, ("'/appl/local/containers/easybuild-sif-images'", repr(str(course.stand_ins.images)))
        )
        course.run(f"cp {recipe} .")  # eb looks in the working directory first
        course.run(
            f"""module purge
module load LUMI/24.03 partition/container EasyBuild-user
eb {RECIPE}.eb"""
        )
        yield course


@pytest.fixture
def files(course, few_images):
    """Step 1 of the page: script and data, which the page downloads; few images."""
    mnist = course.installdir / "mnist"
    shutil.rmtree(mnist, ignore_errors=True)
    raw = mnist / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (mnist / "model").mkdir()
    payload = course.testbed.layout.repository / "payload"
    shutil.copy(payload / "mnist_ddp.py", mnist / "mnist_DDP.py")
    for part in ("training", "ladder"):  # without data, the digits are the ladder's
        shutil.copytree(payload / part, mnist / part)
    for file in few_images.glob("*-ubyte"):
        shutil.copy(file, raw)
    course.run('cd mnist; for i in $(seq 0 31); do ln -s data "data$i"; done')
    return mnist


def test_the_module_has_image_directory_files_and_an_active_virtual_environment(course):
    output = course.run(
        f"""{LOAD}module load systools
echo $SIF; echo $SIFPYTORCH; echo $CONTAINERROOT; echo $EBROOTPYTORCH
{SHELL}
singularity exec $SIF cat /runscripts/conda-python-distributed | cmp - $RUNSCRIPTS/conda-python-distributed
find -L $CONTAINERROOT -maxdepth 3 -printf '%P\\n'"""
    )
    sif, sifpytorch, root, ebroot, python, *files = output.splitlines()
    assert sif == sifpytorch == f"{root}/{IMAGE}"
    assert root == ebroot
    assert Path(root).parts[-2:] == tuple(MODULE.split("/"))
    assert python == "/user-software/venv/pytorch/bin/python"
    assert {f"easybuild/{RECIPE}.eb", "user-software/venv/pytorch", "runscripts/conda-python-distributed"} <= {*files}
    assert {"bin/start-shell", "bin/make-squashfs", "bin/unmake-squashfs"} <= {*files}


def test_packing_the_virtual_environment_into_one_file_and_back(course):
    output = course.run(
        f"""{LOAD}make-squashfs >&2
module load {MODULE}
{SHELL}
unmake-squashfs >&2
module load {MODULE}
{SHELL}"""
    )
    assert output == "/user-software/venv/pytorch/bin/python\n" * 2


def test_the_job_trains_and_its_output_is_at_the_path_on_the_page(course, files):
    (course.installdir / "mnist.slurm").write_text(JOB)
    course.run(submission("mnist.slurm"))
    (output,) = course.installdir.glob("output_mnist.slurm_*.txt")
    text = output.read_text()
    output.unlink()
    assert "world size 2," in text
    assert re.search(r"test accuracy: [\d.]+ %", text)
    assert list((files / "model").iterdir())
