"""Shell code that means what the values mean."""

import subprocess

import pytest
from pytorch_launch.shell import failure, statements


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_values_survive_any_posix_shell(shell):
    value = "a b'c\"$HOME`id`\\n*\n;"
    code = statements({"VALUE": value, "GONE": None, "EMPTY": ""}) + 'printf %s "$VALUE|${GONE-no}|${EMPTY-no}"'
    done = subprocess.run([shell, "-c", code], env={"GONE": "x"}, capture_output=True, text=True, check=True)
    assert done.stdout == value + "|no|"


def test_a_failure_is_the_status_of_source_and_leaves_the_shell_alive():
    code = f"source <(echo '{failure(2)}'); echo $?; eval \"$(echo '{failure(3)}')\"; echo $?"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2\n3\n"
