"""Recipes for enroot with pyxis, for the Container Engine and for podman-hpc, each with the line of its site's page.

podman-hpc and podman are real; enroot and the plugins of srun are stand-ins (docs/systems.md).
"""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from optional_packages import need

from testbed.packages import find_command
from testbed.stand_ins.registry import Registry
from testbed.stand_ins.systems import IN_IMAGE

pytestmark = [pytest.mark.testbed, pytest.mark.early]

VERSION = "2.12.0a0+5aff3928d8.nv26.05"
ENROOT = "PyTorch-2.12.0-ngc-26.05-enroot"
ENGINE = "PyTorch-2.12.0-ngc-26.05-ce"
PODMAN = "PyTorch-2.10.0-ngc-26.01-podman-hpc"
SRUN = "srun -N2 --ntasks-per-node=2 "
#: A directory of the image: the launcher removes those of other installations from PYTHONPATH.
OF_IMAGE = "/usr/lib/python3/dist-packages"
SHOW = "-c 'import os; print(os.environ[\"PYTHONPATH\"])'"


@pytest.fixture(scope="module")
def registry(system, container):
    """A registry with the CPU image, without the packages that are mounted; its address, and the manifest's digest."""
    with Registry(system.directory / "registry") as registry:
        digest = registry.add_sif(system.stand_ins.sif, without=[f".{IN_IMAGE}/*"])
        yield registry.address, digest


@pytest.fixture
def short_directory():
    """A directory with a short path: with a long one, podman waits 20 seconds for the end of each container."""
    with tempfile.TemporaryDirectory(prefix="podman-") as directory:
        yield directory


def mounted(system, version):
    """A line of a recipe: the packages that the image of the registry lacks, with this version of torch."""
    return f"binds = {[f'{system.stand_ins.packages}:{IN_IMAGE}', system.stand_ins.version(version)]}\n"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (ENROOT, "--container-image=$PYTORCH_IMAGE --container-mounts=$PYTORCH_MOUNTS,$PWD --container-workdir=$PWD"),
        pytest.param(ENGINE, "--environment=$PYTORCH_EDF", marks=pytest.mark.thorough),
    ],
    ids=["enroot", "engine"],
)
def test_squashfs_image_that_srun_starts_on_enroot(system, registry, name, options):
    address, digest = registry
    text = (system.stand_ins.easyconfigs / f"{name}.eb").read_text()
    changes = [("nvcr.io", address), (re.search("sha256:[0-9a-f]{64}", text)[0], digest)]
    changes += [(binds, "") for binds in re.findall(r"binds = .*\n", text)]
    changes.append(("gpu = ", mounted(system, VERSION) + "gpu = "))
    if "aarch64" in text:
        changes.append(("'aarch64'", "'x86_64'"))
    line = f"{SRUN}{options} $RUNSCRIPTS/conda-python-distributed"
    system.check(name, f"{line} -u probe.py", version=VERSION, changes=changes)
    system.check_environment(name, line)
    module = f"module load PyTorch/{name.partition('-')[2]}"
    # bin/ starts the image too, and the image's own paths are no other installation's
    assert system.run(f"{module}\nPYTHONPATH={OF_IMAGE} conda-python-distributed {SHOW}").strip() == OF_IMAGE


@pytest.mark.thorough  # tests/unit/bin/test_enter_engines.py always has its command
def test_image_of_podman_hpc_beside_enroot(system, registry, short_directory):
    need("podman", "runc")
    if os.geteuid() != 0:
        pytest.skip("only root can use podman here")
    program = shutil.which("podman-hpc", path=Path(sys.executable).parent)
    if program is None:
        pytest.skip("podman-hpc is not installed: `python3 testbed tools` installs it")
    for name in ("podman-hpc", "fuse-overlayfs-wrap"):
        (system.stand_ins.bin / name).symlink_to(Path(program).with_name(name))
    address, digest = registry
    image = f"{address}/nvidia/pytorch@{digest}"
    version = "2.10.0a0+a36e1d39eb.nv26.01.42222806"
    settings = podman_settings(system, short_directory, f"podman pull --quiet --tls-verify=false {image}")
    system.check(
        PODMAN,
        f"{SRUN}conda-python-distributed -u probe.py",
        version=version,
        changes=[
            ("docker.io/nersc/pytorch:26.01.01", image),
            ("binds = ['/global', '/pscratch']\n", mounted(system, version)),
        ],
        settings=settings,
    )
    system.check_environment(PODMAN, f"{SRUN}conda-python-distributed", settings)


def podman_settings(system, run, pull):
    """Shell code with podman's configuration: storage of this test, limits of this machine, modules without content."""
    directory = system.directory / "podman"
    if not directory.exists():
        (directory / "modules.d").mkdir(parents=True)
        for option in ("gpu", "nccl-cu13"):
            (directory / "modules.d" / f"{option}.yaml").write_text(f"name: {option}\ncli_arg: {option}\nenv: X\n")
        (directory / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{run}/storage"\nrunroot = "{run}/run"\n'
        )
        (directory / "containers.conf").write_text(
            '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
            f'[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\nruntime = "{find_command("runc")}"\n'
        )
    return f"""export CONTAINERS_STORAGE_CONF={directory}/storage.conf CONTAINERS_CONF={directory}/containers.conf
export PODMANHPC_USE_DEFAULT_ARGS=False PODMANHPC_MODULES_DIR={directory}/modules.d USER=root
podman image exists {pull.split()[-1]} || {pull} >/dev/null
"""
