"""The module around a Shifter image, and the command that enters it; with a stand-in for `shifter`."""

import os
import re
import shutil
import subprocess

import pytest
from easybuild.framework.easyconfig.default import CUSTOM, MANDATORY
from easybuild.framework.easyconfig.easyconfig import get_easyblock_class
from easybuild.tools.build_log import EasyBuildError
from recipes import TREE

RECIPE = TREE / "easyconfigs" / "p" / "PyTorch" / "PyTorch-2.1.0-ngc-23.07-shifter.eb"


def command(path, lines):
    """Make a command in a directory that may have others."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/bash\n" + lines)
    path.chmod(0o755)
    return path


def module_text(app):
    """The module's description and interface."""
    app.src = []
    app.make_installdir()
    app.module_generator.start_module_creation()
    return app.module_generator.get_description() + app.make_module_extra()


def test_every_parameter_has_a_help_text_and_the_image_must_be_given(prefix):
    options = get_easyblock_class("EB_PyTorchShifter").extra_options()
    assert options["image"][2] == MANDATORY
    assert all(len(text) > 10 and category in (CUSTOM, MANDATORY) for _, text, category in options.values())


def test_the_module_names_the_image_in_the_variables_that_shifter_reads(easyblock):
    text = module_text(easyblock(RECIPE))
    for variable, value in [
        ("SHIFTER_IMAGE", "nersc/pytorch:ngc-23.07-v0"),
        ("SHIFTER_IMAGETYPE", "docker"),
        ("SHIFTER_MODULE", "gpu,nccl-plugin"),
    ]:
        assert re.search(rf'pushenv\W+{variable}\W+{value}"?\)?$', text, re.MULTILINE), variable
    assert "SINGULARITY" not in text


def test_help_shows_the_launch_line(easyblock):
    line = "srun -N2 --ntasks-per-node=2 shifter --image=$SHIFTER_IMAGE $RUNSCRIPTS/conda-python-distributed -u "
    assert f"{line}train.py\n" in module_text(easyblock(RECIPE))


def test_without_shifter_the_error_reports_where_to_install(easyblock, monkeypatch):
    monkeypatch.setattr("easybuild.easyblocks.pytorchimage.which", lambda _: None)
    with pytest.raises(EasyBuildError, match="shifter not found on PATH.*on a host with Shifter"):
        easyblock(RECIPE).configure_step()


def test_an_image_that_the_gateway_lacks_is_named_with_the_command_that_pulls_it(easyblock, tmp_path, monkeypatch):
    command(tmp_path / "bin" / "shifter", "echo FAILED to lookup docker image >&2; exit 1\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    message = "FAILED to lookup docker image. Try `shifterimg pull nersc/pytorch:ngc-23.07-v0`"
    with pytest.raises(EasyBuildError, match=re.escape(message)):
        easyblock(RECIPE).configure_step()


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
        assert enter(name, "-c", "a b", SHIFTER_IMAGE="x:1").stdout == f"<shifter><--image=x:1>{called}"


def test_the_help_of_start_shell_is_its_own_and_needs_no_image(tmp_path):
    (tmp_path / "start-shell").symlink_to(TREE / "libexec" / "enter")
    output = subprocess.run([tmp_path / "start-shell", "--help"], capture_output=True, text=True, check=True).stdout
    assert output.startswith("Usage: start-shell [arguments of bash]\n\n")


def test_inside_the_image_a_command_is_the_images_own(enter):
    assert enter("python", "a b", SHIFTER_IMAGE="x:1", SHIFTER_IMAGEREQUEST="x:1").stdout == "<inside><a b>"
    assert enter("get-master", "a", SHIFTER_IMAGEREQUEST="x:1").stdout == "runscript a\n"


def test_without_the_module_a_command_finds_its_image_and_its_directories(enter):
    assert enter("python", "a").stdout == "<shifter><--image=x:1><python><a>"
