"""The edge between a rank's environment and its Python, without the shell in front of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import program
from variables import variables

INTERPRETER = [sys.executable, "-I", "-S"]


@pytest.fixture
def launch(runscripts, tmp_path):
    """Run the launcher with exactly the given environment, in an empty directory."""

    def run(*arguments, env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, runscripts=runscripts):
        command = [*INTERPRETER, runscripts / "pytorch_launch" / "__main__.py", *arguments]
        texts = {"stdout": stdout, "stderr": stderr, "text": True, "errors": "surrogateescape"}
        env = {"TMPDIR": str(tmp_path), **env}
        return subprocess.run(command, env=env, cwd=tmp_path, timeout=300, check=False, **texts)

    return run


@pytest.fixture
def directory_of(tmp_path):
    """Make a directory for PATH with programs of the given names, each a shell script."""

    def make(name, **programs):
        (tmp_path / name).mkdir()
        for each, body in programs.items():
            program(tmp_path / name / each, body)
        return str(tmp_path / name)

    return make


@pytest.mark.parametrize(
    ("path", "status", "output", "message"),
    [
        ("/missing:only:both", 0, "python -c x\n", ""),  # python3 is the second choice
        ("/missing:only", 0, "python3 -c x\n", ""),
        # one that is closed to the user, as root's own are on the PATH of some images; here a directory in the place of
        # the program, for root as well
        ("closed:only", 0, "python3 -c x\n", ""),
        ("locked", 127, "", "python cannot be started: Permission denied\n"),
        (
            *("/missing", 127, ""),
            "python and python3 not found on PATH. Activate an environment that has one with WITH_CONDA or WITH_VENV\n",
        ),
    ],
)
def test_python_is_searched_on_path(launch, directory_of, tmp_path, path, status, output, message):
    directory_of("both", python="echo python $*", python3="echo python3 $*")
    directory_of("only", python3="echo python3 $*")
    (Path(directory_of("locked", python="", python3="echo wrong")) / "python").chmod(0o644)
    (tmp_path / "closed" / "python").mkdir(parents=True)
    path = ":".join(str(tmp_path / part) for part in path.split(":"))
    done = launch("conda-python-distributed", "-c", "x", env={"PATH": path})
    assert (done.returncode, done.stdout) == (status, output)
    assert done.stderr == (f"conda-python-distributed: {message}" if message else "")


def test_a_full_disk_below_the_output_is_an_error_and_below_the_messages_it_is_none(launch, directory_of):
    env = {"PATH": directory_of("bin", python="echo started"), "TMPDIR": "relative", "PYTORCH_LAUNCH_VERBOSE": "1"}
    with open("/dev/full", "w") as full:  # noqa: PTH123
        started = launch("conda-python-distributed", "-c", "x", env=env, stderr=full)
        failed = launch("get-master", "n[1-2]", env={}, stdout=full)
    assert (started.returncode, started.stdout) == (0, "started\n")
    message = "get-master: cannot write to standard output: No space left on device\n"
    assert (failed.returncode, failed.stderr) == (2, message)


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


@pytest.mark.parametrize("name", ["__init__", "launchers/slurm", "nodelist"])
def test_an_edit_of_an_installed_module_takes_effect(launch, step, packed, name):
    """By its size, or its time."""
    module = packed / "pytorch_launch" / f"{name}.py"
    module.write_text("raise SystemExit(9)".ljust(module.stat().st_size + (name != "nodelist")))
    os.utime(module, (0, 0))
    assert launch("conda-python-distributed", "--dry-run", env=step, runscripts=packed).returncode == 9


def test_torchruns_workers_are_started_by_the_command_beside_the_package(launch, step, directory_of, packed):
    alone = "SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_PROCID=1 SLURM_LOCALID=0"
    env = {**step, **variables(alone), "PATH": directory_of("bin", python="echo $PYTHON_EXEC")}
    done = launch("torchrun-distributed", "train.py", env=env, runscripts=packed)
    assert done.stdout == f"{packed}/conda-python-distributed\n"


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
