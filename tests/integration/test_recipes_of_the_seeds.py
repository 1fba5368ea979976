"""Each system's recipe installs with stand-ins, and the line of its page starts ranks on two nodes.

docs/systems.md has the table of what is real here and what is replaced. Of two recipes of the same kind one is
left to --thorough.
"""

import re
import shutil
from pathlib import Path

import pytest
from optional_packages import need

from testbed import recipes
from testbed.packages import find_command, find_optional
from testbed.stand_ins.job_scripts import HERE, submission, without_hardware, written
from testbed.stand_ins.registry import Registry
from testbed.stand_ins.systems import IN_IMAGE, sha256

pytestmark = [pytest.mark.testbed, pytest.mark.early]

#: One command on each of two nodes.
MPIRUN = f"""salloc --quiet -N2 --ntasks-per-node=2 \\
{find_optional("openmpi-bin")} -np 2 --map-by ppr:1:node --bind-to none """


LUMI_LINE = "srun -N2 --ntasks-per-node=2 singularity exec $SIFPYTORCH conda-python-distributed -u probe.py"


@pytest.mark.thorough  # test_lumi_course.py always installs the first one
@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("PyTorch-2.3.1-rocm-6.0.3-python-3.12-singularity-20240923", "2.3.1+rocm6.0"),
        ("PyTorch-2.7.1-rocm-6.2.4-python-3.12-singularity-20250827", "2.7.1+rocm6.2.4"),
        ("PyTorch-2.10.0-rocm-7.0.2-python-3.12-singularity-20260807", "2.10.0+rocm7.0"),
    ],
)
def test_images_in_the_central_directories_of_lumi(system, container, name, version):
    stand_ins = system.stand_ins
    text = (stand_ins.easyconfigs / f"{name}.eb").read_text()
    image, directory = re.search(
        r"^image = '(.*)'(?s:.*?)^central_images = \[\n    ('.*')", text, re.MULTILINE
    ).groups()
    checksums = re.findall(r"^image_checksum = '(.*)'$", text, re.MULTILINE)
    changes = [(directory, repr(str(stand_ins.images))), *((each, sha256(stand_ins.sif)) for each in checksums)]
    settings = f"export SINGULARITY_BIND={stand_ins.version(version)}"
    if name.startswith("PyTorch-2.3.1"):
        settings += "," + stand_ins.conda()
    stand_ins.image(image)
    system.check(name, LUMI_LINE, version=version, changes=changes, settings=settings)
    assert not list((system.installed / "SOURCEPATH").rglob("*.sif")), "an image was copied to the source path"


@pytest.mark.thorough  # images/test_image_cotainr.py always installs an image of the real cotainr
def test_cotainr_on_a_base_image_of_lumi(system, container):
    stand_ins = system.stand_ins
    stand_ins.image("lumi-rocm-rocm-5.5.3.sif")
    version = "2.0.1+rocm5.4.2"
    system.check(
        "PyTorch-2.0.1-rocm-5.4.2-python-3.11-cotainr",
        LUMI_LINE,
        version=version,
        changes=[("'/appl/local/containers/sif-images'", repr(str(stand_ins.images)))],
        settings=f"export COTAINR_STAND_IN_SIF={stand_ins.sif} SINGULARITY_BIND={stand_ins.version(version)}",
    )


@pytest.mark.thorough  # images/test_image_registries.py installs from a registry, test_job_scripts.py launches so
def test_image_of_a_registry_for_cuda_with_torchrun_under_mpirun(system, container):
    need("openmpi-bin")
    stand_ins = system.stand_ins
    packages = f"{stand_ins.packages}:{IN_IMAGE}"  # bound, to make the image ten times smaller
    with Registry(system.directory / "registry") as registry:
        digest = registry.add_sif(stand_ins.sif, without=[f".{IN_IMAGE}/*"])
        system.check(
            "PyTorch-2.14.0-cuda-13.0-singularity",
            MPIRUN + "apptainer run $SIF torchrun-distributed --nproc-per-node=2 probe.py",
            version="2.14.0",
            changes=[
                ("docker.io", registry.address),
                ("sha256:9c99fafa01edfaa3d16da8c209b38b5970bb6fd6e72725ef60efc901489f70c6", digest),
            ],
            settings=f"export APPTAINER_NOHTTPS=1 SINGULARITY_BIND={packages},{stand_ins.version('2.14.0')}",
        )


SHIFTER_LINE = "srun -N2 --ntasks-per-node=2 shifter --image=$SHIFTER_IMAGE $RUNSCRIPTS/conda-python-distributed"


def shifter(system, image, version):
    """The settings of a stand-in for Shifter whose gateway has one image, with this version of torch."""
    return f"""export SHIFTER_STAND_IN_IMAGE={image}
export SHIFTER_STAND_IN_SIF={system.stand_ins.sif} SINGULARITY_BIND={system.stand_ins.version(version)}"""


def test_newest_shifter_image_of_nersc_and_its_job_script(system, container):
    version = "2.10.0a0+a36e1d39eb.nv26.01.42222806"
    settings = shifter(system, "nersc/pytorch:26.01.01", version)
    system.check("PyTorch-2.10.0-ngc-26.01-shifter", f"{SHIFTER_LINE} probe.py", version=version, settings=settings)
    system.check_environment("PyTorch-2.10.0-ngc-26.01-shifter", SHIFTER_LINE, settings)
    job = system.directory / "submit_batch_shifter.sh"
    job.write_text(without_hardware("perlmutter/submit_batch_shifter.sh"))
    modules = f"export MODULEPATH={system.installed}/INSTALLPATH/modules/all"  # without the MNIST module
    system.run(f"{settings}\n{modules}\n{submission(job, f'{HERE} --ntasks-per-node=1')}")
    (output,) = (text for name, text in written(system.directory).items() if name.startswith("shifter_job_log_"))
    assert "world size 2," in output and "test accuracy" in output


FRONTIER_LINE = "srun -N2 -n4 conda-python-distributed -W ignore -u probe.py"


@pytest.fixture(scope="module")
def frontier(system):
    """Frontier's modules with a Python and a compiler for MPI, which compiles mpi4py."""
    need("openmpi-bin", "libopenmpi-dev")
    mpicc = find_command("mpicc.openmpi") or pytest.skip("mpicc.openmpi is not installed")
    stand_ins = system.stand_ins
    python = shutil.which("python3.11")
    stand_ins.module("PrgEnv-gnu/8.5.0", stand_ins.command("cray", "cc", mpicc))
    stand_ins.module("PrgEnv-gnu/8.7.0", stand_ins.command("cray", "cc", mpicc))
    stand_ins.module("miniforge3/23.11.0-0", stand_ins.command("conda-base", "python3.10", python))
    for name in ("rocm/6.0.0", "rocm/7.1.1", "craype-accel-amd-gfx90a/1.0", "cpe/26.03"):
        stand_ins.module(name)
    stand_ins.command("bin", "python3.12", python)  # of a conda environment
    sources = system.installed / "SOURCEPATH" / "p" / "PyTorch"
    sources.mkdir(parents=True, exist_ok=True)  # those of other recipes are there too
    download = "python3 -m pip download --quiet --no-deps"
    system.run(f"{download} --dest {stand_ins.wheels} setuptools==80.10.2")
    system.run(f"{download} --no-binary mpi4py --no-build-isolation --dest {sources} mpi4py==3.1.6")
    system.mpi4py = sha256(sources / "mpi4py-3.1.6.tar.gz")
    return system


@pytest.mark.parametrize(("torch", "rocm"), [("2.3.1", "6.0"), ("2.10.0", "7.1")])
@pytest.mark.thorough  # test_venv_build.py always builds a package from source, test_packed.py packs
def test_virtual_environments_of_frontier_with_mpi4py_from_source(frontier, torch, rocm):
    version = f"{torch}+rocm{rocm}"
    settings = f"{frontier.index}\nexport CFLAGS=-O0"  # compiles mpi4py in seconds
    changes = [("c8fa625e0f92b082ef955bfb52f19fa6691d29273d7d71135d295aa143dee6cb", frontier.mpi4py)]
    name = f"PyTorch-{torch}-rocm-{rocm}-venv"
    frontier.check(name, FRONTIER_LINE, version=version, changes=changes, settings=settings)
    output = frontier.run(
        f"""module load {recipes.module(name)}
{find_optional("openmpi-bin")} -np 2 --oversubscribe python -c '
import mpi4py.MPI as mpi, os
line = "rank %d %.8s\\n" % (mpi.COMM_WORLD.allreduce(1), mpi.Get_library_version())
os.write(1, line.encode())  # in one write
'"""
    )
    assert output == "rank 2 Open MPI\n" * 2


@pytest.mark.thorough  # test_locked_venv.py always installs from a lock, test_cuda_wheels.py the lock's own wheels
def test_virtual_environment_of_perlmutter_with_exported_variables(system):
    system.stand_ins.module("python/3.11-24.1.0", Path(shutil.which("python3.11")).parent)
    line = "srun -N2 --ntasks-per-node=2 bash -c 'source <(ddp-env) && python -u probe.py'"
    system.check("PyTorch-2.15.0-cuda-13.2-perlmutter-venv", line, version="2.15.0", settings=system.index)
