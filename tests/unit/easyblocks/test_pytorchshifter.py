"""The command that enters a Shifter image, with a stand-in for `shifter`."""

import shutil
import subprocess

import pytest
from recipes import TREE


def command(path, lines):
    """Make a command in a directory that may have others."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/bash\n" + lines)
    path.chmod(0o755)
    return path


@pytest.fixture
def enter(tmp_path):
    """A function that runs a command of an installation's bin/ with the environment given."""
    root = tmp_path / "with blank"
    for part in ("libexec", "runscripts"):
        shutil.copytree(TREE / part, root / part, ignore=shutil.ignore_patterns("pytorch_*"))
    (root / "runscripts" / "get-master").unlink()
    (root / "libexec" / "installation.bash").write_text("engine=shifter image=x:1\n")
    command(root / "runscripts" / "get-master", 'echo runscript "$@"\n')
    for name in ("get-master", "python", "start-shell", "ddp-env"):
        (root / "bin").mkdir(exist_ok=True)
        (root / "bin" / name).symlink_to("../libexec/enter")
    command(tmp_path / "site" / "shifter", 'printf "<%s>" shifter "$@"\n')
    command(tmp_path / "site" / "python", 'printf "<%s>" inside "$@"\n')

    def run(name, *arguments, **environment):
        path = f"{root}/bin:{tmp_path}/site:/usr/bin:/bin"
        return subprocess.run(
            [name, *arguments],
            env={"PATH": path, **environment},
            executable=root / "bin" / name,
            capture_output=True,
            text=True,
            check=False,
        )

    run.root = root
    return run


def test_commands_enter_the_image_and_runscripts_by_their_path_on_the_host(enter):
    calls = {
        "python": "<python><-c><a b>",
        "start-shell": "<bash><--norc><-c><a b>",
        "get-master": f"<{enter.root}/bin/../libexec/../runscripts/get-master><-c><a b>",
    }
    for name, called in calls.items():
        for variables in ({"SHIFTER_IMAGE": "x:1"}, {}):  # with the module, and without it
            assert enter(name, "-c", "a b", **variables).stdout == f"<shifter><--image=x:1>{called}"


def test_the_help_of_start_shell_is_its_own_and_needs_no_image(tmp_path):
    (tmp_path / "start-shell").symlink_to(TREE / "libexec" / "enter")
    output = subprocess.run([tmp_path / "start-shell", "--help"], capture_output=True, text=True, check=True).stdout
    assert output.startswith("Usage: start-shell [arguments of bash]\n\n")


def test_inside_the_image_a_command_is_the_images_own(enter):
    assert enter("python", "a b", SHIFTER_IMAGE="x:1", SHIFTER_IMAGEREQUEST="x:1").stdout == "<inside><a b>"
    assert enter("get-master", "a", SHIFTER_IMAGEREQUEST="x:1").stdout == "runscript a\n"
