"""Shell code that means what the values mean; help texts do not drift from what the commands do."""

import re
import subprocess

import pytest
from pytorch_launch import NO_PYTHON, USER_ERROR
from pytorch_launch.active import CONTAINERS, KEEP
from pytorch_launch.caches import SUBDIRECTORIES
from pytorch_launch.plan import make_plan
from pytorch_launch.report import USAGE, statements
from pytorch_launch.topology import Node


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_values_survive_any_posix_shell(shell):
    value = "a b'c\"$HOME`id`\\n*\n;"
    code = statements({"VALUE": value, "GONE": None, "EMPTY": ""}) + 'printf %s "$VALUE|${GONE-no}|${EMPTY-no}"'
    done = subprocess.run([shell, "-c", code], env={"GONE": "x"}, capture_output=True, text=True, check=True)
    assert done.stdout == value + "|no|"


def test_shell_and_python_have_the_same_containers_and_exit_statuses(runscripts):
    text = (runscripts / "launch.bash").read_text()
    variables = "".join(re.findall(r"^(?:sif|shifter)_container=(.*)$", text, re.MULTILINE))
    assert set(re.findall(r"\b[A-Z]+_[A-Z]+\b", variables)) == set(CONTAINERS)
    statuses = re.search(r"^USER_ERROR=(\d+) NO_PYTHON=(\d+)$", (runscripts / "launch.bash").read_text(), re.MULTILINE)
    assert [int(status) for status in statuses.groups()] == [USER_ERROR, NO_PYTHON]


def test_the_help_names_every_variable_of_torch_that_is_set_and_the_one_that_keeps_paths():
    text = USAGE["conda-python-distributed"]
    plan = make_plan({}, Node("/nowhere"))
    for name in plan.changes.keys() - SUBDIRECTORIES.keys():
        assert name in text
    assert all(KEEP in USAGE[f"conda-python-{name}"] for name in ("simple", "distributed"))
