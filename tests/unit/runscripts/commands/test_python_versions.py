"""The host's commands under every Python from the oldest to the newest that docs/compatibility.md lists.

SLES 15 has Python 3.6. list-packages alone needs 3.8: it runs with the Python of the module.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from command_environment import SHOW_ENVIRONMENT
from repository import TREE

OLDEST = "3.6"
VERSIONS = ("3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
#: What a Python of the host runs; the others are the module's or the kernel's.
OF_MODULE = TREE / "runscripts" / "pytorch_packages.py"  # list-packages
PROGRAMS = sorted({*(TREE / "runscripts").rglob("*.py")} - {OF_MODULE})
#: What a later Python removes is an error.
STRICT = {"PYTHONWARNINGS": "error", "PYTHONDONTWRITEBYTECODE": "1"}


def find_interpreter(version):
    """Return a Python of this version from PYTHON36 or the like, on PATH or of pyenv; None without one."""
    named = os.environ.get(f"PYTHON{version.replace('.', '')}")
    if named:
        return named
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    places = [os.environ["PATH"], *map(str, pyenv.glob(f"{version}.*/bin"))]
    found = filter(None, (shutil.which(f"python{version}", path=place) for place in places))
    # pyenv's shims are on PATH also for versions that are not selected, and fail
    return next((path for path in found if subprocess.run([path, "-c", ""], capture_output=True).returncode == 0), None)


@pytest.fixture(params=[OLDEST, *(pytest.param(version, marks=pytest.mark.thorough) for version in VERSIONS)])
def interpreter(request, home):
    """A directory whose python and python3 are of one version."""
    found = find_interpreter(request.param)
    if not found:
        name = request.param.replace(".", "")
        pytest.skip(f"No python{request.param} in PYTHON{name}, on PATH, nor below $PYENV_ROOT or ~/.pyenv.")
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
    expected = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "nid001002"}
    assert expected.items() <= printed.items()
    env = json.loads(run("conda-python-distributed", "-c", SHOW_ENVIRONMENT, env=in_step))
    assert printed.items() <= env.items()


def test_a_shell_gets_the_variables_of_a_rank(run, in_step):
    code = run("ddp-env", env=in_step)
    assert run("/bin/bash", "-c", f"{code}\necho $RANK $MASTER_ADDR", env=in_step) == "3 nid001002\n"
    assert run("get-master", env=in_step) == "nid001002\n"


def test_the_doctor_runs_its_checks(run_unchecked, interpreter, runscripts, in_step):
    first = {**in_step, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    program = [str(interpreter / "python3"), "-I", "-S", str(runscripts / "pytorch_command.py"), "pytorch-doctor"]
    done = run_unchecked(*program, "--json", env=first)
    assert done.stderr == ""
    assert len(json.loads(done.stdout)["checks"]) > 3


def test_commands_of_a_job_name_what_is_missing_outside_one(run_unchecked, interpreter, runscripts, in_step):
    program = [str(interpreter / "python3"), "-I", "-S", str(runscripts / "pytorch_command.py")]
    for command, message in (
        ("pytorch-run -- hostname", "pytorch-run: not in an allocation of Slurm"),
        ("pytorch-stacks", "pytorch-stacks: no job"),
        ("pytorch-stage", "pytorch-stage: no image or packed venv to stage"),
    ):
        done = run_unchecked(*program, *command.split(), env=without_step(in_step))
        assert done.returncode and done.stderr.startswith(message) and done.stderr.count("\n") == 1


def without_step(env):
    return {name: value for name, value in env.items() if not name.startswith("SLURM")}


def test_every_module_is_imported(run, interpreter, runscripts, in_step):
    paths = [path.relative_to(runscripts) for path in PROGRAMS if path.is_relative_to(runscripts)]
    names = [".".join(path.with_suffix("").parts) for path in paths if path.name != "__main__.py"]
    code = f"import sys; sys.path.insert(0, {str(runscripts)!r})\nfor name in {names}: __import__(name)"
    run(str(interpreter / "python3"), "-I", "-S", "-c", code, env=in_step)
