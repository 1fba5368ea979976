"""The environments' command `pip`, with a stand-in for the pip package."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.parametrize("prefix", ["Lua"], indirect=True)  # nothing here is about the module's syntax


@pytest.fixture
def pip(prefix, tmp_path):
    """A function that runs the command where pip ends with a status; return the process."""
    from pytorch_install.users.pip_command import write_pip

    package = tmp_path / "packages" / "pip" / "_internal" / "cli"
    package.mkdir(parents=True)
    for directory in (package, package.parent, package.parent.parent):
        (directory / "__init__.py").touch()
    (package / "main.py").write_text("import os\ndef main():\n    return int(os.environ['STATUS'])\n")
    command = tmp_path / "bin" / "pip3.11"
    command.parent.mkdir()
    command.touch()
    write_pip(str(command.parent), sys.executable)
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("# Why this is so.\n# What to do.\ntorch==2.13.0\n")

    def run(*arguments, status, constraint=constraints):
        environment = {
            "PYTHONPATH": str(tmp_path / "packages"),
            "STATUS": str(status),
            "CONTAINERROOT": str(tmp_path),
            "PIP_CONSTRAINT": f"/theirs {constraint}",
        }
        return subprocess.run([command, *arguments], env=environment, capture_output=True, text=True, check=False)

    return run


def test_after_a_failed_install_the_comments_of_the_modules_constraints_are_shown(pip):
    result = pip("install", "torchvision", status=3)
    assert (result.returncode, result.stderr) == (3, "Why this is so.\nWhat to do.\n")


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["install", "einops"], {"status": 0}),
        (["uninstall", "einops"], {"status": 1}),
        (["install", "einops"], {"status": 1, "constraint": "/theirs/too"}),
    ],
)
def test_otherwise_its_output_and_status_are_those_of_pip(pip, arguments, options):
    result = pip(*arguments, **options)
    assert (result.returncode, result.stdout, result.stderr) == (options["status"], "", "")
