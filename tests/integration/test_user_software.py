"""Packages that users install on top of an image, packed and unpacked, in an installation of these tests' own."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.testbed

RECIPE = """easyblock = 'EB_PyTorchContainer'
name = 'PyTorch'
version = '2.13.0'
versionsuffix = '{suffix}'
homepage = 'https://pytorch.org'
description = "The image of another module"
toolchain = SYSTEM
sources = ['{image.name}']
central_images = ['{image.parent}']
skipsteps = ['sanitycheck']
moduleclass = 'ai'
"""

DEFAULTING = "Defaulting to user installation because normal site-packages is not writeable"


class Installation:
    """A prefix of EasyBuild with a container module, whose image is that of another module."""

    def __init__(self, testbed, image, prefix):
        self.testbed = testbed
        self.image = image
        self.prefix = prefix
        self.store = prefix / "software" / "PyTorch" / ".user-software"
        self.directory = self.store / "2.13.0-mine"
        self.packed = self.store / "2.13.0-mine.squashfs"

    def install(self, suffix="-mine", options=""):
        """Run ``eb``; return what it says."""
        recipe = self.prefix / f"PyTorch-2.13.0{suffix}.eb"
        recipe.write_text(RECIPE.format(suffix=suffix, image=self.image))
        return self.testbed.run(
            f"eb --installpath={self.prefix} --buildpath={self.prefix}/build {options} {recipe} 2>&1"
        )

    def script(self, script):
        """A bash script with the module loaded, and a home directory of its own."""
        return (f"export HOME={self.prefix}/home APPTAINER_NO_PRIVS=1; module use {self.prefix}/modules/all\n"
                f"module load PyTorch/2.13.0-mine\n{script}")  # fmt: skip

    def run(self, script):
        """Run a script that must succeed with the module loaded; return its standard output."""
        return self.testbed.run(self.script(script))

    def run_unchecked(self, script):
        """Run a script with the module loaded; return the process."""
        return self.testbed.run_unchecked(self.script(script))


@pytest.fixture(scope="module")
def installed(testbed, container):
    """The installation, and what is in its user-software before anybody uses it."""
    image = Path(testbed.run(f"module load {container}; echo $SIF").strip())
    with tempfile.TemporaryDirectory(prefix="user-software-", dir=testbed.layout.root) as directory:
        installation = Installation(testbed, image, Path(directory))
        installation.install()
        shutil.copytree(installation.store, installation.prefix / "fresh", symlinks=True)
        yield installation


@pytest.fixture
def installation(installed):
    """The installation as it is when it is new."""
    for path in (installed.store, installed.prefix / "home"):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(installed.prefix / "fresh", installed.store, symlinks=True)
    (installed.prefix / "home").mkdir()
    return installed


@pytest.fixture
def wheels(work):
    """A package of nobody's with a command, and a newer one in place of the image's, as wheel files."""
    for name, version in [("extra_package", "1.0"), ("networkx", "99.0")]:
        info = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(work / f"{name}-{version}-py3-none-any.whl", "w") as archive:
            archive.writestr(f"{name}.py", f"def main():\n    print('{name} {version}', __file__)\n")
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{name}-command = {name}:main\n")
            archive.writestr(f"{info}/RECORD", "")
    return work


def pip_install(wheels, name="extra_package"):
    """The command that installs one of the wheels."""
    return f"pip install --no-index --no-deps {wheels}/{name}-*.whl"


IMPORT = "python -c 'import extra_package; extra_package.main()'"
THERE = "extra_package 1.0 /user-software/venv/pytorch/lib/python3.11/site-packages/extra_package.py\n"


def test_a_new_environment_is_a_few_files_and_its_python_is_the_first(installation):
    files = [path for path in installation.store.rglob("*") if not path.is_dir() or path.is_symlink()]
    assert len(files) < 20
    output = installation.run(
        """ls -d $CONTAINERROOT/user-software/venv
singularity exec $SIF bash -c 'command -v python pip; echo $VIRTUAL_ENV'
python -c 'import torch; print(torch.__file__)'; list-packages --user"""
    )
    assert output.splitlines() == [
        f"{installation.prefix}/software/PyTorch/2.13.0-mine/user-software/venv",
        "/user-software/venv/pytorch/bin/python",
        "/user-software/venv/pytorch/bin/pip",
        "/user-software/venv/pytorch",
        "/opt/pytorch/lib/python3.11/site-packages/torch/__init__.py",
    ]


def test_pip_on_the_host_installs_what_all_see_without_activation(installation, wheels):
    output = installation.run(
        f"""{pip_install(wheels)} >/dev/null; {pip_install(wheels, "networkx")} >/dev/null
{IMPORT}
srun -n1 singularity exec $SIF conda-python-simple -c 'import extra_package; extra_package.main()'
srun -n1 conda-python-distributed -c 'import extra_package; extra_package.main()'
singularity exec $SIF extra_package-command"""
    )
    assert output == THERE * 4
    listed = installation.run("pip list; echo @; list-packages; echo @; singularity exec $SIF list-packages")
    pip, outside, inside = listed.split("@\n")
    assert re.search(r"^extra.package +1\.0$", pip, re.MULTILINE)
    assert outside == inside
    assert re.search(r"^extra_package +1\.0 +user-software$", outside, re.MULTILINE)
    assert re.search(r"^networkx +99\.0 +user-software$", outside, re.MULTILINE)
    assert re.search(r"^torch +2\.13\.0\S* +image$", outside, re.MULTILINE)
    user = installation.run("list-packages --user")
    assert [line.split()[0] for line in user.splitlines()] == ["extra_package", "networkx"]


def test_packages_survive_a_rebuild_and_the_end_of_the_installed_image(installation, wheels):
    installation.run(pip_install(wheels))
    packages = installation.directory / "venv/pytorch/lib/python3.11/site-packages"
    (packages / "zz_image.pth").write_text("")  # as where the image had its packages elsewhere
    assert "carry" not in installation.install(options="--rebuild")
    assert installation.run(f"{IMPORT}; python -c 'import numpy'") == THERE
    output = installation.run(f"rm -f $SIF; module load PyTorch/2.13.0-mine; echo $SIF; {IMPORT}; make-squashfs")
    assert output.startswith(f"{installation.image}\n{THERE}")
    installation.install(options="--rebuild")
    assert installation.run(f"{IMPORT}; echo $SINGULARITY_BIND").startswith(THERE)
    assert installation.packed.exists()


def test_an_environment_for_another_python_is_kept_aside(installation, wheels):
    installation.run(pip_install(wheels))
    environment = installation.directory / "venv" / "pytorch"
    (environment / "lib/python3.11").rename(environment / "lib/python3.10")
    output = installation.install(options="--rebuild")
    assert "made with another Python than the image's" in output
    (kept,) = environment.parent.glob("pytorch_*")
    assert (kept / "lib/python3.10/site-packages/extra_package.py").exists()
    assert str(kept) in output
    assert installation.run("list-packages --user; python -c 'import sys; print(sys.prefix)'") == (
        "/user-software/venv/pytorch\n"
    )


def test_a_rebuild_that_fails_leaves_the_environment_and_says_nothing_of_another(installation, wheels):
    installation.run(pip_install(wheels))
    environment = installation.directory / "venv" / "pytorch"
    (environment / "lib/python3.11").rename(environment / "lib/python3.10")  # another Python's
    recipe = installation.prefix / "fails.eb"
    recipe.write_text(RECIPE.format(suffix="-mine", image=installation.image).replace(
        "skipsteps = ['sanitycheck']",
        "sanity_check_paths = {'files': [], 'dirs': ['bin']}\nsanity_check_commands = "
        "['singularity exec $SIF python -c \"import sys, torch; print(sys.prefix, torch.__name__); exit(9)\"']"
    ))  # fmt: skip
    result = installation.testbed.run_unchecked(
        f"eb --installpath={installation.prefix} --buildpath={installation.prefix}/build --rebuild {recipe} 2>&1"
    )
    assert result.returncode != 0
    assert "/user-software/venv/pytorch torch" in result.stdout  # the sanity check had the new one
    assert "it is kept as" not in result.stdout
    assert os.listdir(environment.parent) == ["pytorch"]
    assert (environment / "lib/python3.10/site-packages/extra_package.py").exists()
    assert sorted(path.name for path in installation.store.iterdir()) == ["2.13.0-mine"]


def test_a_package_of_the_users_wins_over_one_of_an_image_that_sets_pythonpath(installation, wheels):
    image = installation.run("python -c 'import torch; print(torch.__path__[0])'").strip().rpartition("/")[0]
    installation.run(pip_install(wheels, "networkx"))
    output = installation.run(
        f"""export SINGULARITYENV_PYTHONPATH={image} APPTAINERENV_PYTHONPATH={image}
python -c 'import networkx, torch; print(networkx.__file__)'"""
    )
    assert output.startswith("/user-software/")


def test_a_new_version_says_how_to_carry_packages_over_and_that_works(installation, wheels):
    installation.run(pip_install(wheels))
    output = installation.install("-new")
    commands = re.search(r"to carry them over: (.*)", output)[1]
    output = installation.run(f"module unload PyTorch; cd {wheels}\n{commands} >pip.log\n{IMPORT}; echo $CONTAINERROOT")
    assert output.startswith(THERE)
    assert output.endswith("/2.13.0-new\n")


@pytest.mark.parametrize("state", ["packed", "not-writable"])
def test_where_the_user_may_not_write_pip_says_so_and_goes_to_pythonuserbase(installation, wheels, state):
    installation.run(pip_install(wheels))
    if state == "packed":
        said = installation.run("make-squashfs")
        installation.run("make-squashfs --clean")
        assert "Before you change it with pip, run unmake-squashfs" in said
        assert not installation.directory.exists()
    else:
        subprocess.run(["chmod", "-R", "a-w", installation.directory], check=True)
    result = installation.run_unchecked(
        f"{pip_install(wheels, 'networkx')}\n{IMPORT}\nlist-packages --user; list-packages"
    )
    assert result.returncode == 0, result.stderr
    assert "WARNING: Data image" not in result.stderr
    assert DEFAULTING in result.stdout
    assert THERE in result.stdout
    assert re.findall(r"^(\w+) @", result.stdout, re.MULTILINE) == ["extra_package", "networkx"]
    places = [str(path) for path in (installation.prefix / "home").rglob("networkx.py")]
    assert len(places) == 1
    assert re.match(rf"{installation.prefix}/home/.local/easybuild/PyTorch/2.13.0-mine-[0-9a-f]{{8}}/lib/", places[0])
    assert re.search(r"^networkx +99\.0 +PYTHONUSERBASE$", result.stdout, re.MULTILINE)
    subprocess.run(["chmod", "-R", "u+w", installation.store], check=True)
    if state == "packed":
        installation.run("unmake-squashfs")
        assert DEFAULTING not in installation.run(f"pip uninstall --yes --quiet networkx; {pip_install(wheels)}")


@pytest.mark.parametrize("command", ["make-squashfs", "unmake-squashfs"])
def test_a_running_job_goes_on_and_may_start_more_steps(installation, wheels, command):
    installation.run(pip_install(wheels))
    if command == "unmake-squashfs":
        installation.run("make-squashfs")
        installation.run("make-squashfs --clean")
    late = (
        "import pathlib, time; pathlib.Path('ready').touch()\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.05)\n"
        "import extra_package; extra_package.main()\n"
    )
    (wheels / "late.py").write_text(late)
    output = installation.run(
        f"""cd {wheels}
srun -n1 bash -c 'python late.py && {IMPORT.replace("'", '"')}' >output & job=$!
while [ ! -e ready ]; do kill -0 $job; sleep 0.05; done
{command}; touch go; wait $job; cat output
srun -n1 {IMPORT}; module load PyTorch/2.13.0-mine; srun -n1 {IMPORT}; echo $SINGULARITY_BIND"""
    )
    assert output.count(THERE) == 4
    mounted = ".squashfs:/user-software" if command == "make-squashfs" else "2.13.0-mine:/user-software"
    assert mounted in output.splitlines()[-1]


def test_kill_9_while_mksquashfs_works_leaves_the_directory_in_use_and_the_next_call_works(installation, wheels):
    real = shutil.which("mksquashfs")
    stuck = wheels / "mksquashfs"
    stuck.write_text(f'#!/bin/bash\n{real} "$@"; [[ $1 = -* ]] || {{ touch {wheels}/packed; sleep 600; }}\n')
    stuck.chmod(0o755)
    output = installation.run(
        f"""{pip_install(wheels)} >/dev/null
PATH={wheels}:$PATH setsid make-squashfs & command=$!
while [ ! -e {wheels}/packed ]; do kill -0 $command; sleep 0.05; done
ls {installation.store}; ls {installation.store}/.2.13.0-mine.work
kill -9 $command; make-squashfs 2>&1 || echo status $?
kill -9 -- -$command; wait $command || echo ended $?
module load PyTorch/2.13.0-mine; {IMPORT}; make-squashfs >/dev/null; module load PyTorch/2.13.0-mine; {IMPORT}"""
    )
    assert output.startswith("2.13.0-mine\npacked\n")
    assert "make-squashfs: another process is packing or unpacking" in output  # the program that it started still is
    assert "status 1\n" in output
    assert "ended 137\n" in output
    assert output.count(THERE) == 2
    assert not list(installation.store.glob(".*.work"))


def test_a_full_disk_is_a_sentence_and_what_was_in_use_stays(installation, wheels):
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("only who may mount a file system can fill a small one")
    installation.run(pip_install(wheels))
    result = installation.run_unchecked(
        f"""cat >{wheels}/full <<'END'
cp -a {installation.store} {wheels}/saved
mount -t tmpfs -o size=4M none {installation.store} && cp -a {wheels}/saved/. {installation.store}
head -c 3M /dev/urandom >{installation.directory}/big
make-squashfs; echo status $?; ls -A {installation.store} | xargs; {IMPORT}
mount -o remount,size=8M {installation.store}
make-squashfs >/dev/null && env --unset=__PYTORCH_USER_SOFTWARE make-squashfs --clean; echo status $? # in another shell
mount -o remount,size=4M {installation.store}
unmake-squashfs; echo status $?; ls -A {installation.store} | xargs
END
unshare --mount bash {wheels}/full"""
    )
    assert result.stdout.splitlines() == [
        "status 1", ".2.13.0-mine.lock 2.13.0-mine", THERE.strip(), "status 0",
        "status 1", ".2.13.0-mine.lock 2.13.0-mine.squashfs",
    ]  # fmt: skip
    first, second = result.stderr.splitlines()
    assert re.match(r"make-squashfs: mksquashfs failed, nothing has changed \(.*No space left", first)
    assert re.match(r"unmake-squashfs: unpacking failed, nothing has changed \(.*No space left", second)


def test_the_commands_refuse_inside_the_container(installation):
    for command in ("make-squashfs", "unmake-squashfs"):
        result = installation.run_unchecked(f"singularity exec $SIF $CONTAINERROOT/bin/{command}")
        assert result.returncode == 1
        assert result.stderr == f"{command}: cannot run in a container. Leave the container first\n"


def test_list_packages_tells_the_users_apart_in_a_venv_module_too(testbed, venv, wheels):
    output = testbed.run(
        f"""module load {venv}; export PYTHONUSERBASE={wheels}/base
{pip_install(wheels)} --user --quiet --no-warn-script-location; list-packages --user; list-packages"""
    )
    assert re.match(r"extra_package @ file://\S+\nPackage +Version +From\n", output)
    assert re.search(r"^extra_package +1\.0 +PYTHONUSERBASE$", output, re.MULTILINE)
    assert re.search(r"^torch +2\.13\.0\S* +module$", output, re.MULTILINE)


def test_start_shell_runs_a_command_or_gives_a_prompt_inside_the_image(installation):
    inside = "echo inside $APPTAINER_NAME"
    assert installation.run(f"start-shell -c '{inside}'") == f"inside {installation.image.name}\n"
    terminal = f"{sys.executable} -c 'import pty; pty.spawn([\"start-shell\"])'"
    output = installation.run(f"{terminal} <<'END'\n{inside}\nexit 0\nEND")
    assert f"inside {installation.image.name}" in output
    assert re.search(rf"> {re.escape(inside)}", output)  # what was typed, after the prompt
