"""The edge between a rank's environment and its Python, without the shell in front of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from variables import variables

INTERPRETER = [sys.executable, "-I", "-S"]


@pytest.fixture
def launch(runscripts, tmp_path):
    """Run the launcher with exactly the given environment, in an empty directory."""

    def run(*arguments, env, options=(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, runscripts=runscripts):
        return subprocess.run(
            [*INTERPRETER, *options, runscripts / "pytorch_launch" / "__main__.py", *arguments],
            env={"TMPDIR": str(tmp_path), **env},
            cwd=tmp_path,
            stdout=stdout,
            stderr=stderr,
            text=True,
            errors="surrogateescape",
            timeout=300,
            check=False,
        )

    return run


@pytest.fixture
def directory_of(tmp_path):
    """Make a directory for PATH with programs of the given names, each a shell script."""

    def make(name, **programs):
        directory = tmp_path / name
        directory.mkdir()
        for program, body in programs.items():
            (directory / program).write_text(f"#!/bin/sh\n{body}\n")
            (directory / program).chmod(0o755)
        return str(directory)

    return make


def test_python_is_searched_on_path_and_python3_is_the_second_choice(launch, directory_of):
    both = directory_of("both", python="echo python $*", python3="echo python3 $*")
    only = directory_of("only", python3="echo python3 $*")
    done = launch("conda-python-distributed", "-c", "x", env={"PATH": f"/missing:{only}:{both}"})
    assert done.stdout == "python -c x\n"
    done = launch("conda-python-distributed", "-c", "x", env={"PATH": f"/missing:{only}"})
    assert done.stdout == "python3 -c x\n"


def test_without_any_python_on_path_the_status_is_127_with_one_line(launch, directory_of):
    done = launch("conda-python-distributed", "-c", "x", env={"PATH": directory_of("empty")})
    assert done.returncode == 127
    assert done.stdout == ""
    assert done.stderr == (
        "conda-python-distributed: python and python3 not found on PATH. "
        "Activate an environment that has one with WITH_CONDA or WITH_VENV\n"
    )


def test_a_python_that_cannot_be_started_is_not_passed_over(launch, directory_of):
    directory = directory_of("bin", python="", python3="echo wrong")
    (Path(directory) / "python").chmod(0o644)
    done = launch("conda-python-distributed", "-c", "x", env={"PATH": directory})
    assert done.returncode == 127
    assert done.stderr == "conda-python-distributed: python cannot be started: Permission denied\n"


def test_a_directory_that_is_closed_to_the_user_is_passed_over(launch, directory_of, tmp_path):
    """As root's own are on the PATH of some images; here a directory in the place of the program, for root as well."""
    (tmp_path / "closed" / "python").mkdir(parents=True)
    only = directory_of("only", python3="echo python3 $*")
    done = launch("conda-python-distributed", "-c", "x", env={"PATH": f"{tmp_path}/closed:{only}"})
    assert done.stdout == "python3 -c x\n"


def test_what_cannot_be_said_does_not_keep_python_from_starting(launch, directory_of):
    directory = directory_of("bin", python="echo started")
    env = {"PATH": directory, "TMPDIR": "relative", "PYTORCH_LAUNCH_VERBOSE": "1"}
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = launch("conda-python-distributed", "-c", "x", env=env, stderr=full)
    assert (done.returncode, done.stdout) == (0, "started\n")


def test_an_answer_that_cannot_be_written_is_an_error_in_one_line(launch):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = launch("get-master", "n[1-2]", env={}, stdout=full)
    assert done.returncode == 2
    assert done.stderr == "get-master: cannot write to standard output: No space left on device\n"


def test_a_shell_script_in_place_of_python_ignores_no_more_signals_than_this(launch, directory_of):
    directory = directory_of("bin", python="while read -r l; do echo $l; done </proc/self/status")
    done = launch("conda-python-distributed", "-c", "x", env={"PATH": directory})
    direct = subprocess.run([f"{directory}/python"], capture_output=True, text=True, check=True)
    assert ignored_signals(done.stdout) == ignored_signals(direct.stdout)


def ignored_signals(status):
    """The bit mask SigIgn of /proc/self/status, proc(5)."""
    return next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))


def sources(runscripts):
    """The modules of the launcher, without what starts it."""
    return [path for path in (runscripts / "pytorch_launch").rglob("*.py") if path.name != "__main__.py"]


def test_an_installation_has_one_file_to_import(launch, step, packed):
    for path in sources(packed):
        times = path.stat().st_mtime_ns
        path.write_text("raise SystemExit(9)".ljust(path.stat().st_size))
        os.utime(path, ns=(times, times))
    for path in (packed / "pytorch_launch").rglob("*.pyc"):
        path.unlink()
    done = launch("conda-python-distributed", "--dry-run", env=step, runscripts=packed)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == launch("conda-python-distributed", "--dry-run", env=step).stdout


@pytest.mark.parametrize("name", ["pytorch_launch/__init__.py", "pytorch_launch/launchers/slurm.py"])
def test_an_edit_of_an_installed_module_takes_effect(launch, step, packed, name):
    with (packed / name).open("a") as module:
        module.write("raise SystemExit(9)\n")
    assert launch("conda-python-distributed", "--dry-run", env=step, runscripts=packed).returncode == 9


def test_an_edit_of_the_same_size_takes_effect_by_its_time(launch, step, packed):
    module = packed / "pytorch_launch" / "nodelist.py"
    module.write_text("raise SystemExit(9)".ljust(module.stat().st_size))
    os.utime(module, (0, 0))
    assert launch("conda-python-distributed", "--dry-run", env=step, runscripts=packed).returncode == 9


@pytest.mark.parametrize("of", ["runscripts", "packed"])
def test_torchruns_workers_are_started_by_the_command_beside_the_package(launch, step, directory_of, of, request):
    runscripts = request.getfixturevalue(of)
    step.update(
        variables(
            "SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_PROCID=1 SLURM_LOCALID=0"
        ),
    )
    env = {**step, "PATH": directory_of("bin", python="echo $PYTHON_EXEC")}
    done = launch("torchrun-distributed", "train.py", env=env, runscripts=runscripts)
    assert done.stdout == f"{runscripts}/conda-python-distributed\n"


@pytest.mark.parametrize("damage", [lambda code: b"\0\0\0\0" + code[4:], lambda code: code[:999], lambda _: b"", None])
def test_byte_code_of_another_version_or_a_part_of_a_file_is_not_used(launch, step, packed, damage):
    (archive,) = (packed / "__pycache__").iterdir()
    if damage:
        archive.write_bytes(damage(archive.read_bytes()))
    else:  # another Python than the installation's
        archive.rename(archive.with_name(archive.name.replace(sys.implementation.cache_tag, "cpython-38")))
    done = launch("conda-python-distributed", "--dry-run", env=step, runscripts=packed)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == launch("conda-python-distributed", "--dry-run", env=step).stdout


def test_values_that_are_no_valid_text_survive(launch, directory_of, tmp_path):
    directory = directory_of("bin", python='echo "$ODD $2"')
    odd = os.fsdecode(b"\xff\xfe")
    env = {"PATH": directory, "ODD": odd, "LC_ALL": "C.UTF-8", "TMPDIR": f"{tmp_path}/{odd}"}
    done = launch("conda-python-distributed", "-c", odd, env=env)
    assert done.stdout == f"{odd} {odd}\n"
    assert os.fsencode(f"cannot use {tmp_path}/{odd} for caches: ") in os.fsencode(done.stderr)
