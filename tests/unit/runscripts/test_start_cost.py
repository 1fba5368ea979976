"""What one start of a rank costs: modules that it imports, and calls on files of the package.

Every rank pays for both, on shared file systems and on a node that other ranks use at the same time.
"""

import collections
import os
import subprocess
import sys

import pytest
from programs import program
from variables import RANK_0

from benchmarks.counts import CALL

INTERPRETER = [sys.executable, "-I", "-S"]

#: Modules of Python that a start imports besides these, which a bare Python does not.
OF_PYTHON = {"os", "_operator", "errno", "_socket", "fcntl"}
#: Each of these costs more instructions than all of the package.
COSTLY = {"argparse", "dataclasses", "json", "pathlib", "re", "signal", "socket", "subprocess", "typing"}
#: Calls that name files of the installation: for each module its directory, source and byte code.
MOST_CALLS = 140


def start(step, directory, rank, *command):
    """Start rank 0 or 3 of a step; its Python ends at once. Returns its messages."""
    python = program(directory / "bin" / "python", "")
    (directory / "bin" / "python3").symlink_to(sys.executable)
    path = {"PATH": f"{python.parent}:/usr/bin:/bin", "TMPDIR": str(directory)}
    # a port for each test: a claim lasts until the processes of its rank have ended
    own = {"MASTER_PORT": str(11000 + os.getpid() % 9000)}
    env = {**step, **(RANK_0 if rank == 0 else {}), **path, **own}
    options = {"cwd": directory, "capture_output": True, "text": True, "timeout": 300, "check": False}
    done = subprocess.run([*command, "-c", "pass"], env=env, **options)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("rank", [3, 0])
def test_a_rank_imports_no_costly_module(step, tmp_path, runscripts, rank):
    code = f"import {', '.join(sorted(OF_PYTHON))}"
    allowed = subprocess.run([*INTERPRETER, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True)
    main = runscripts / "pytorch_launch" / "__main__.py"
    messages = start(step, tmp_path, rank, *INTERPRETER, "-X", "importtime", main, "conda-python-distributed")
    imported = modules(messages) - modules(allowed.stderr)
    assert not imported & COSTLY
    assert {name for name in imported if name.partition(".")[0] != "pytorch_launch"} == set()


def modules(messages):
    """The modules in messages of `python -X importtime`."""
    return {line.split("|")[-1].strip() for line in messages.splitlines() if "|" in line}


def test_a_rank_names_few_files_of_an_installation(step, tmp_path, installed):
    """On a shared file system each of these calls is a request to its servers."""
    traced = ["strace", "-f", "-qq", "-e", "trace=%file", "-o", tmp_path / "trace"]
    try:
        subprocess.run([*traced, "true"], check=True, capture_output=True, timeout=300)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"strace cannot trace here: {error}")
    start(step, tmp_path, 3, *traced, installed / "conda-python-distributed")
    calls = file_calls((tmp_path / "trace").read_text(), installed)
    assert calls["pytorch_launch/launch.py"]  # the trace is that of a rank
    assert sum(calls.values()) <= MOST_CALLS, calls.most_common()


def file_calls(trace, directory):
    """The number of calls of a trace for each file in a directory, by its name there."""
    paths = (os.path.normpath(path) for path in CALL.findall(trace))
    return collections.Counter(path[len(f"{directory}/") :] for path in paths if path.startswith(f"{directory}/"))
