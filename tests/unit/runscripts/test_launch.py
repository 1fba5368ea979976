"""The edge between the environment of a rank and its Python, without the shell in front; the permission to trace it."""

import os
import subprocess
import sys

import pytest
from programs import program
from pytorch_launch.launch import script_path
from tables import name as row_name
from tables import table

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


def directory_of(path, **programs):
    """Make a directory for PATH with programs of the given names, each a shell script; returns its path."""
    for name, body in programs.items():
        program(path / name, body)
    return str(path)


#: PATH, the exit status, what runs, and the message. `closed` has a directory in the place of the program, as a user
#: meets root's own in some images; python3 is the second choice.
ON_PATH = """
path               | status | runs    | message
missing:only:both  | 0      | python  |
missing:only       | 0      | python3 |
closed:only        | 0      | python3 |
loop:only          | 0      | python3 |
loop               | 127    |         | {}/loop/python cannot be started: Too many levels of symbolic links
locked             | 127    |         | python and python3 not found on PATH. Activate an environment
missing            | 127    |         | python and python3 not found on PATH. Activate an environment
"""


@pytest.mark.parametrize("row", table(ON_PATH), ids=row_name)
def test_python_is_searched_on_path(launch, tmp_path, row):
    directory_of(tmp_path / "both", python="echo python", python3="echo python3")
    directory_of(tmp_path / "only", python3="echo python3")
    program(tmp_path / "locked" / "python", "").chmod(0o644)
    (tmp_path / "closed" / "python").mkdir(parents=True)
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "python").symlink_to("python")
    path = ":".join(str(tmp_path / part) for part in row["path"].split(":"))
    done = launch("conda-python-distributed", "-c", "x", env={"PATH": path})
    assert (done.returncode, done.stdout.strip()) == (int(row["status"]), row["runs"])
    assert row["message"].format(tmp_path) in done.stderr
    assert done.stderr.count("\n") == bool(row["message"])


def test_a_full_disk_below_the_output_is_an_error_and_below_the_messages_it_is_none(launch, tmp_path):
    env = {
        "PATH": directory_of(tmp_path / "bin", python="echo started"),
        "TMPDIR": "relative",
        "PYTORCH_LAUNCH_VERBOSE": "1",
    }
    with open("/dev/full", "w") as full:  # noqa: PTH123
        started = launch("conda-python-distributed", "-c", "x", env=env, stderr=full)
        failed = launch("get-master", "n[1-2]", env={}, stdout=full)
    assert (started.returncode, started.stdout) == (0, "started\n")
    message = "get-master: cannot write to standard output: No space left on device\n"
    assert (failed.returncode, failed.stderr) == (2, message)


def test_values_that_are_no_valid_text_survive(launch, tmp_path):
    directory = directory_of(tmp_path / "bin", python='echo "$ODD $2"')
    odd = os.fsdecode(b"\xff\xfe")
    env = {"PATH": directory, "ODD": odd, "LC_ALL": "C.UTF-8", "TMPDIR": f"{tmp_path}/{odd}"}
    done = launch("conda-python-distributed", "-c", odd, env=env)
    assert done.stdout == f"{odd} {odd}\n"
    assert os.fsencode(f"cannot use {tmp_path}/{odd} for caches: ") in os.fsencode(done.stderr)


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("train.py --lr 0.1", "train.py"),
        ("-u /absolute/train.py -c 3", "/absolute/train.py"),
        # no check: Python reports these by itself, or they are other files
        ("-W ignore train.py", None),
        ("-um package train.py", None),
        ("-c pass train.py", None),
        ("train", None),
        ("- train.py", None),
        ("-", None),
        ("", None),
    ],
)
def test_the_script_is_the_first_argument_if_it_ends_in_py(line, path):
    assert script_path(line.split()) == path


def test_the_call_reaches_the_kernel(runscripts, tmp_path):
    """strace names the call, also where the kernel has no Yama and refuses it."""
    code = f"import sys; sys.path.insert(0, {str(runscripts)!r}); from pytorch_launch import launch"
    code += "; launch.allow_tracing()"
    try:
        command = ["strace", "-e", "trace=prctl", "-o", tmp_path / "calls", sys.executable, "-I", "-S", "-c", code]
        subprocess.run(command, check=True, timeout=300, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"strace cannot trace here: {error}")
    assert "prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY" in (tmp_path / "calls").read_text()
