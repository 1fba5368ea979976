"""Where the script is among Python's arguments."""

import pytest
from pytorch_launch.launch import script_path

#: The script, "-" for standard input, None for none; and lines of Python's arguments.
LINES = {
    "train.py": (
        *("train.py --lr 0.1", "-u train.py -c 3", "-uB -O train.py", "-W ignore train.py", "-Wignore train.py"),
        *("-uW ignore train.py", "-X dev -Ximporttime train.py", "-XX train.py"),
        "--check-hash-based-pycs always train.py",
    ),
    "-odd-name.py": ("-- -odd-name.py",),
    "/absolute/train.py": ("-I /absolute/train.py",),
    None: (
        *("-m package train.py", "-mpackage train.py", "-um package train.py", "-c pass train.py", "-cpass train.py"),
        *("-uc pass train.py", "-W ignore -m package", "-V train.py", "-h train.py", "--version train.py"),
    ),
    "-": ("- train.py", "-u - train.py", "-- - train.py", "-W", "--", "-i", ""),
}


@pytest.mark.parametrize("path", LINES)
def test_the_script_is_the_first_argument_that_is_no_option_and_no_value(path):
    assert {line: script_path(line.split()) for line in LINES[path]} == dict.fromkeys(LINES[path], path)
    assert script_path([""]) == ""  # an empty argument is a path
