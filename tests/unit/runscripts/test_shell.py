"""The shell and Python have the same names; help texts do not drift from what the commands do."""

import re

from pytorch_launch import NO_PYTHON, USER_ERROR
from pytorch_launch.caches import SUBDIRECTORIES
from pytorch_launch.container import CONTAINERS
from pytorch_launch.isolation import KEEP
from pytorch_launch.plan import make_plan
from pytorch_launch.report import USAGE
from pytorch_launch.topology import read_node


def test_shell_and_python_have_the_same_containers_and_exit_statuses(runscripts):
    text = (runscripts / "launch.bash").read_text()
    variables = "".join(re.findall(r"^(?:sif|shifter)_container=(.*)$", text, re.MULTILINE))
    assert set(re.findall(r"\b[A-Z]+_[A-Z]+\b", variables)) == set(CONTAINERS)
    statuses = re.search(r"^USER_ERROR=(\d+) NO_PYTHON=(\d+)$", (runscripts / "launch.bash").read_text(), re.MULTILINE)
    assert [int(status) for status in statuses.groups()] == [USER_ERROR, NO_PYTHON]


def test_the_help_names_every_variable_of_torch_that_is_set_and_the_one_that_keeps_paths():
    text = USAGE["conda-python-distributed"]
    plan = make_plan({}, read_node("/nowhere"))
    for name in plan.changes.keys() - SUBDIRECTORIES.keys():
        assert name in text
    assert KEEP in text
