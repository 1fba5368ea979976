"""Where the script is among Python's arguments."""

import pytest
from pytorch_launch.launch import script_path


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ("train.py --lr 0.1", "train.py"),
        ("-u train.py -c 3", "train.py"),
        ("-uB -O train.py", "train.py"),
        ("-W ignore train.py", "train.py"),
        ("-Wignore train.py", "train.py"),
        ("-uW ignore train.py", "train.py"),
        ("-X dev -Ximporttime train.py", "train.py"),
        ("-XX train.py", "train.py"),
        ("--check-hash-based-pycs always train.py", "train.py"),
        ("-- -odd-name.py", "-odd-name.py"),
        ("-I /absolute/train.py", "/absolute/train.py"),
        ("-m package train.py", None),
        ("-mpackage train.py", None),
        ("-um package train.py", None),
        ("-c pass train.py", None),
        ("-cpass train.py", None),
        ("-uc pass train.py", None),
        ("-W ignore -m package", None),
        ("-V train.py", None),
        ("-h train.py", None),
        ("--version train.py", None),
        ("- train.py", "-"),
        ("-u - train.py", "-"),
        ("-- - train.py", "-"),
        ("-W", "-"),
        ("--", "-"),
        ("-i", "-"),
        ("", "-"),
    ],
)
def test_the_script_is_the_first_argument_that_is_no_option_and_no_value(arguments, path):
    assert script_path(arguments.split()) == path


def test_an_empty_argument_is_a_path():
    assert script_path([""]) == ""
