"""Virtual environments: source packages, modules and Python of the build, packed files, and commands in bin/."""

import re
import subprocess

import pytest
from easybuild.tools.build_log import EasyBuildError
from recipes import VENV, recipe

from pytorch_install.build_environment import modules_of_build

pytestmark = pytest.mark.early

CUDA_HOROVOD = "PyTorch-2.15.0-cuda-13.2-horovod-0.28.1-venv.eb"
SOURCES = "sources = ['%(name)s-%(version)s-cpu.txt']"


def with_packages(edited, packages, *sdists):
    names = [*sdists, "%(name)s-%(version)s-cpu.txt"]
    return edited(VENV, SOURCES, f"sources = {names}\nsource_packages = {packages}")


def test_an_sdist_belongs_to_its_package_however_its_name_is_spelt(easyblock, edited):
    packages = [("mpi4py", {}), ("Flash-Attn", {}), ("zope.interface", {})]
    sdists = ["mpi4py-4.1.2.tar.gz", "flash_attn-2.8.3.tar.gz", "zope-interface-7.0.zip"]
    app = easyblock(with_packages(edited, packages, *sdists))
    assert [package.sdist for package in app.source_packages] == sdists
    assert [package.requirement for package in app.source_packages] == [
        "mpi4py==4.1.2",
        "Flash-Attn==2.8.3",
        "zope.interface==7.0",
    ]


@pytest.mark.parametrize(
    ("sdists", "found"), [([], "none"), (["mpi4py-4.0.0.tar.gz", "mpi4py-4.1.2.tar.gz"], r"mpi4py-4\.0\.0.*4\.1\.2")]
)
def test_a_source_package_has_exactly_one_sdist(easyblock, edited, sdists, found):
    with pytest.raises(EasyBuildError, match=rf"mpi4py in .source_packages. needs one sdist .*found: {found}"):
        easyblock(with_packages(edited, [("mpi4py", {})], *sdists))


def test_a_build_gets_the_hosts_variables_and_a_missing_one_is_named(easyblock, monkeypatch):
    monkeypatch.delenv("NCCL_PATH", raising=False)
    app = easyblock(recipe(CUDA_HOROVOD))
    values = app.source_packages[0].environment({"NCCL_PATH": "/opt/nccl"})
    assert (values["HOROVOD_NCCL_HOME"], values["HOROVOD_GPU_OPERATIONS"]) == ("/opt/nccl", "NCCL")
    with pytest.raises(EasyBuildError, match=r"\$NCCL_PATH is not set, but horovod is built with .*HOROVOD_NCCL_HOME"):
        app.source_packages[0].variables_of_build(1)


def modules(before, during, dependencies=(), build_dependencies=(), of_login=""):
    """The modules of a build, by lists of what was loaded."""
    environ = {"LOADEDMODULES": before, "LMOD_SYSTEM_DEFAULT_MODULES": of_login}
    return modules_of_build("PyTorch", environ, {"LOADEDMODULES": during}, dependencies, build_dependencies)


OWN = "gcc/12:pytorch-easybuild:EasyBuild/5.4.1:cluster/local:PyTorch/2.0-x:openmpi/4.1"
LOGIN = "craype-x86-trento:perftools-base/23.12:PrgEnv-gnu/8.5.0"
OF_LOGIN = "craype-x86-trento:perftools-base:PrgEnv-gnu"
CRAY = "gcc-native/13:cray-mpich/9.0.1:PrgEnv-gnu/8.7.0:rocm/7.1.1:cmake/3.31"


@pytest.mark.parametrize(
    ("before", "during", "dependencies", "of_login", "required", "brought"),
    [
        (OWN, OWN, [], "", ["gcc/12", "openmpi/4.1"], []),
        (LOGIN, LOGIN, [], OF_LOGIN, [], []),
        (LOGIN, LOGIN, ["PrgEnv-gnu/8.5.0"], OF_LOGIN, ["PrgEnv-gnu/8.5.0"], []),
        (
            "PrgEnv-cray/8.5.0:cray-mpich/8.1.28",
            CRAY,
            ["PrgEnv-gnu", "rocm/7.1.1"],
            "",
            ["PrgEnv-gnu/8.7.0", "rocm/7.1.1"],
            ["gcc-native/13", "cray-mpich/9.0.1"],
        ),
    ],
    ids=["the user's", "of every login", "of every login and the recipe", "the recipe's and what they load"],
)
def test_the_modules_of_a_build(before, during, dependencies, of_login, required, brought):
    found = modules(before, during, dependencies, ["cmake/3.31"], of_login=of_login)
    assert found == {"required": required, "brought": brought}


def test_the_variables_of_the_module_are_recorded_for_commands_without_it(packed, tmp_path, monkeypatch):
    monkeypatch.setattr("easybuild.easyblocks.pytorchmodule.EB_PyTorchModule.install_tree", lambda _: None)
    packed.install_tree()
    root = packed.installdir
    names = "CONTAINERROOT EBROOTPYTORCH RUNSCRIPTS WITH_VENV PYTORCH_PACKED PYTHONUSERBASE"

    def seen():
        command = ["bash", "-euc", f"source {root}/module.bash; printenv {names}"]
        return subprocess.check_output(command, env={"HOME": str(tmp_path)}, text=True).splitlines()

    shared = f"{tmp_path}/.local/easybuild/PyTorch/2.13.0-cpu-venv"
    *values, base = seen()
    assert values == [root, root, f"{root}/runscripts", f"source {root}/venv/bin/activate", f"{root}/venv.squashfs"]
    assert re.fullmatch(rf"{shared}-[0-9a-f]{{8}}", base)
    assert f'"{base[-8:]}"' in packed.make_module_extra() or f"-{base[-8:]}" in packed.make_module_extra()


@pytest.fixture
def packed(easyblock, edited):
    """The easyblock of the CPU venv with `packed = True`, and its installation directory."""
    app = easyblock(edited(VENV, "cluster = 'local'", "cluster = 'local'\npacked = True"))
    app.make_installdir()
    return app


def test_without_mksquashfs_the_installation_fails_before_the_long_steps(packed, monkeypatch):
    monkeypatch.setattr("easybuild.easyblocks.pytorchvenv.which", lambda _: None)
    monkeypatch.setattr("easybuild.easyblocks.generic.lockedvenv.which", lambda _: "/usr/bin/python3.11")
    with pytest.raises(EasyBuildError, match="mksquashfs not found on PATH, and the recipe has packed = True"):
        packed.configure_step()
