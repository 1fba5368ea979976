"""The help texts do not drift from what the commands do."""

from pytorch_launch.active import KEEP
from pytorch_launch.caches import SUBDIRECTORIES
from pytorch_launch.launch import COMMANDS
from pytorch_launch.plan import make_plan
from pytorch_launch.report import USAGE
from pytorch_launch.topology import Node


def test_every_command_has_a_help_text():
    assert [*USAGE, "torchrun", "list-packages"] == list(COMMANDS)  # these print their own


def test_the_help_names_every_variable_of_torch_that_is_set_and_the_one_that_keeps_paths():
    text = USAGE["conda-python-distributed"]
    plan = make_plan({}, Node("/nowhere"))
    for name in plan.changes.keys() - SUBDIRECTORIES.keys():
        assert name in text
    assert all(KEEP in USAGE[f"conda-python-{name}"] for name in ("simple", "distributed"))
