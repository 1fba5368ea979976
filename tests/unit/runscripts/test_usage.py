"""The help texts do not drift from what the commands do."""

from pytorch_launch.environment import variables
from pytorch_launch.launch import COMMANDS
from pytorch_launch.usage import USAGE
from pytorch_launch.world import discover


def test_every_command_has_a_help_text():
    assert set(USAGE) == {program for program, _ in COMMANDS.values()}
    for program, text in USAGE.items():
        assert text.startswith(f"usage: {program} ")


def test_the_help_names_every_variable_of_torch_that_is_set():
    text = USAGE["conda-python-distributed"]
    for name in variables({}, discover({}, "vm"), mask_cpus=1, node_cpus=1, pid=1):
        assert name in text
