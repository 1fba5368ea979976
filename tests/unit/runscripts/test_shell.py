"""The shell and Python have the same names."""

import re

from pytorch_launch import NO_PYTHON, USER_ERROR
from pytorch_launch.container import CONTAINERS


def test_shell_and_python_have_the_same_containers_and_exit_statuses(runscripts):
    text = (runscripts / "launch.bash").read_text()
    variables = "".join(re.findall(r"^(?:sif|shifter)_container=(.*)$", text, re.MULTILINE))
    assert set(re.findall(r"\b[A-Z]+_[A-Z]+\b", variables)) == set(CONTAINERS)
    statuses = re.search(r"^USER_ERROR=(\d+) NO_PYTHON=(\d+)$", (runscripts / "launch.bash").read_text(), re.MULTILINE)
    assert [int(status) for status in statuses.groups()] == [USER_ERROR, NO_PYTHON]
