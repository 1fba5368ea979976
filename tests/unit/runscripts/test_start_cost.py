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

#: Modules of the package that a rank of a Slurm step without GPUs imports.
MODULES = {
    *("__init__", "active", "caches", "claim", "cores", "devices", "launch", "launchers/__init__", "launchers/slurm"),
    *("nodelist", "plan", "rendezvous", "topology", "world"),
}
#: Modules of Python that a bare Python does not import. Each of socket, argparse, subprocess, dataclasses, typing, re,
#: json, pathlib and enum costs more than all of the package.
OF_PYTHON = {"_socket"}

#: Calls that name a file, besides one for each module: bash and Python name what they start several times.
OTHER_FILES = {"conda-python-distributed": 3, "launch.bash": 1, "pytorch_launch/__main__.py": 5}


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
@pytest.mark.parametrize("of", ["runscripts", "packed"])
def test_a_rank_imports_no_more_than_these_modules(step, tmp_path, of, request, rank):
    bare = subprocess.run([*INTERPRETER, "-X", "importtime", "-c", ""], capture_output=True, text=True, check=True)
    main = request.getfixturevalue(of) / "pytorch_launch" / "__main__.py"
    messages = start(step, tmp_path, rank, *INTERPRETER, "-X", "importtime", main, "conda-python-distributed")
    imported = modules(messages) - modules(bare.stderr)
    own = {name for name in imported if name.partition(".")[0] == "pytorch_launch"}
    assert imported - own <= OF_PYTHON
    expected = {path.removesuffix("/__init__") for path in MODULES}
    assert own == {f"pytorch_launch.{path.replace('/', '.')}".removesuffix(".__init__") for path in expected}


def modules(messages):
    """The modules in messages of `python -X importtime`."""
    return {line.split("|")[-1].strip() for line in messages.splitlines() if "|" in line}


def test_a_rank_names_each_file_of_an_installation_once(step, tmp_path, packed):
    """On a shared file system each of these calls is a request to its servers."""
    traced = ["strace", "-f", "-qq", "-e", "trace=%file", "-o", tmp_path / "trace"]
    try:
        subprocess.run([*traced, "true"], check=True, capture_output=True, timeout=300)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"strace cannot trace here: {error}")
    start(step, tmp_path, 3, *traced, packed / "conda-python-distributed")
    calls = file_calls((tmp_path / "trace").read_text(), packed)
    (archive,) = (packed / "__pycache__").iterdir()
    allowed = {**OTHER_FILES, f"__pycache__/{archive.name}": 1}
    allowed.update({f"pytorch_launch/{module}.py": 1 for module in MODULES})
    more = {file: count for file, count in calls.items() if count > allowed.get(file, 0)}
    assert not more, f"calls for files of the package, {sum(calls.values())} in all; more than once: {more}"
    assert calls["pytorch_launch/launch.py"] == 1  # the trace is that of a rank


def file_calls(trace, directory):
    """The number of calls of a trace for each file in a directory, by its name there."""
    paths = (os.path.normpath(path) for path in CALL.findall(trace))
    return collections.Counter(path[len(f"{directory}/") :] for path in paths if path.startswith(f"{directory}/"))
