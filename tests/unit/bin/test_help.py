"""--help of every command that a module puts on PATH."""

import os
import subprocess
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[3]
#: Two have the help of other programs, and two are called by the names of links to them.
OTHERS = ("uv", "torchrun", "start")
COMMANDS = sorted(
    path
    for directory in ("bin", "runscripts")
    for path in (TREE / directory).iterdir()
    if path.is_file() and os.access(path, os.X_OK) and not path.suffix and path.name not in OTHERS
)


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.name)
def test_help_is_a_usage_line_and_a_description(path):
    env = {"PATH": os.environ["PATH"]}
    done = subprocess.run([path, "--help"], env=env, capture_output=True, text=True, check=True)
    usage, _, description = done.stdout.partition("\n")
    assert usage.lower().startswith("usage: ")
    assert path.name in usage
    assert description.strip()
    assert done.stderr == ""
