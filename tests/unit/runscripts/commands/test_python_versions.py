"""The runscripts under every Python from the oldest to the newest that docs/compatibility.md lists."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from command_environment import SHOW_ENVIRONMENT

pytestmark = pytest.mark.thorough
VERSIONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13")
#: What a later Python removes is an error.
STRICT = {"PYTHONWARNINGS": "error", "PYTHONDONTWRITEBYTECODE": "1"}


def find_interpreter(version):
    """Return a Python of this version on PATH or of pyenv, or None."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    places = [os.environ["PATH"], *map(str, pyenv.glob(f"{version}.*/bin"))]
    found = filter(None, (shutil.which(f"python{version}", path=place) for place in places))
    # pyenv's shims are on PATH also for versions that are not selected, and fail
    return next((path for path in found if subprocess.run([path, "-c", ""], capture_output=True).returncode == 0), None)


@pytest.fixture(params=VERSIONS)
def interpreter(request, home):
    """A directory whose python and python3 are of one version."""
    found = find_interpreter(request.param)
    if not found:
        pytest.skip(f"No python{request.param} on PATH, nor below $PYENV_ROOT or ~/.pyenv.")
    directory = home.parent / "interpreter"
    directory.mkdir()
    for name in ("python", "python3"):
        (directory / name).symlink_to(found)
    answer = subprocess.check_output([directory / "python3", "-c", "import sys; print(*sys.version_info[:2], sep='.')"])
    assert answer.decode().strip() == request.param
    return directory


@pytest.fixture
def in_step(interpreter, step):
    """The environment of task 3 of 4, with the interpreter first on PATH."""
    return {**step, **STRICT, "PATH": f"{interpreter}:/usr/bin:/bin"}


def test_a_rank_is_started(run, in_step):
    lines = run("conda-python-distributed", "--dry-run", env=in_step).splitlines()
    printed = dict(line.split("=", 1) for line in lines)
    assert (printed["RANK"], printed["WORLD_SIZE"], printed["MASTER_ADDR"]) == ("3", "4", "nid001002")
    env = json.loads(run("conda-python-distributed", "-c", SHOW_ENVIRONMENT, env=in_step))
    assert printed.items() <= env.items()


def test_a_shell_gets_the_variables_of_a_rank(run, in_step):
    code = run("ddp-env", env=in_step)
    assert run("/bin/bash", "-c", f"{code}\necho $RANK $MASTER_ADDR", env=in_step) == "3 nid001002\n"
    assert run("get-master", env=in_step) == "nid001002\n"


def test_the_doctor_runs_its_checks(run_unchecked, interpreter, runscripts, in_step):
    first = {**in_step, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    program = str(runscripts / "pytorch_doctor" / "__main__.py")
    done = run_unchecked(str(interpreter / "python3"), "-I", "-S", program, "--json", env=first)
    assert done.stderr == ""
    assert len(json.loads(done.stdout)["checks"]) > 3


def test_packages_are_listed(run_unchecked, runscripts, in_step):
    done = run_unchecked(str(runscripts / "list-packages"), env=in_step)
    assert done.stderr == ""
    assert done.stdout.split()[:3] == ["Package", "Version", "From"]


@pytest.mark.parametrize("part", ["pytorch_launch", "pytorch_doctor"])
def test_every_module_is_compiled_without_a_warning(run_unchecked, interpreter, runscripts, in_step, home, part):
    shutil.copytree(runscripts / part, home / part, ignore=shutil.ignore_patterns("__pycache__"))
    done = run_unchecked(
        str(interpreter / "python3"), "-W", "error", "-m", "compileall", "-q", "-f", str(home / part),
        env={**in_step, "PYTHONDONTWRITEBYTECODE": ""},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
