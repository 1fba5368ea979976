"""The easyblocks in the manner of EasyBuild's own tests: constructors, options, generated modules."""

import re
import sys
from pathlib import Path

import pytest
from recipes import CONTAINER, VENV, both_syntaxes, recipe

pytestmark = both_syntaxes


def module_text(app):
    """The module file as EasyBuild would write it, without the sections that need an installation."""
    app.src = []
    app.make_installdir()
    app.module_generator.start_module_creation()
    return app.module_generator.get_description() + app.make_module_extra()


@pytest.mark.parametrize(
    ("there", "runtime", "binds"),
    [
        (["apptainer"], "apptainer", "APPTAINER_BIND"),
        (["singularity"], "singularity", "SINGULARITY_BIND"),
        (["apptainer", "singularity"], "singularity", "APPTAINER_BIND"),
        ([], "singularity", "SINGULARITY_BIND"),
    ],
)
def test_help_and_sanity_check_enter_the_image_with_the_runtime_of_this_host(
    easyblock, monkeypatch, tmp_path, there, runtime, binds
):
    for name in there:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/nowhere")
    app = easyblock(recipe(CONTAINER))
    assert f"--ntasks-per-node=2 {runtime} exec $SIF conda-python-distributed -u train.py" in app.cfg["usage"]
    assert f"export {binds}=/data" in app.cfg["usage"]
    commands = []
    monkeypatch.setattr(
        "easybuild.framework.easyblock.EasyBlock.sanity_check_step",
        lambda *_, custom_commands, **__: commands.extend(custom_commands),
    )
    app.sanity_check_step()
    assert len(commands) == 2
    assert all(command.startswith(f'{runtime} exec --bind "$TMPDIR" "$SIF" conda-') for command in commands)


@pytest.mark.parametrize(
    ("name", "runtime"),
    [
        ("PyTorch-2.3.1-rocm-6.0.3-python-3.12-singularity-20240923.eb", "ROCm 6.0"),
        ("PyTorch-2.0.1-rocm-5.4.2-python-3.11-cotainr.eb", "ROCm 5.4"),
        ("PyTorch-2.15.0-cuda-13.2-perlmutter-venv.eb", "CUDA 13.2"),
        # so that the profile does not read the value of a module that this one replaces
        ("PyTorch-2.1.0-ngc-23.07-shifter.eb", "none"),
        (VENV, "none"),
    ],
)
def test_the_profile_is_told_cuda_or_rocm_before_it_is_loaded(easyblock, name, runtime):
    text = module_text(easyblock(recipe(name)))
    told = re.findall(r'setenv\W+__PYTORCH_RUNTIME\W+"?([^"\n]+?)"?\)?$', text, re.MULTILINE)
    assert told == [runtime]
    assert "__PYTORCH_RUNTIME" not in text[text.index("cluster/") :]


def test_modules_that_cannot_be_loaded_beside_it_are_those_of_the_recipe(easyblock, edited):
    assert re.search(r"^conflict\W+pytorch\b", module_text(easyblock(recipe(VENV))), re.MULTILINE)
    text = module_text(easyblock(edited(VENV, "cluster = 'local'", "conflicts = ['singularity-AI-bindings']")))
    assert re.search(r"^conflict\W+singularity-AI-bindings\b", text, re.MULTILINE)
    assert not re.search(r"^conflict\W+pytorch\b", text, re.MULTILINE)


def test_only_where_python_does_not_change_pip_the_module_sets_its_variables(easyblock, monkeypatch, tmp_path):
    metadata = tmp_path / "packages/torch-2.13.0.dist-info/METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n")
    app = easyblock(recipe(VENV))
    assert "PIP_CONSTRAINT" not in module_text(app)
    python = ["env", f"PYTHONPATH={tmp_path}/packages", sys.executable, "-s", "-S"]
    monkeypatch.setattr(app, "runtime_python", lambda: python)
    app.hold_packages()
    assert re.search("^torch==2", (Path(app.installdir) / "constraints.txt").read_text(), re.MULTILINE)
    assert (Path(app.installdir) / "held/users_pip.py").exists()
    for name in ("PIP_CONSTRAINT", "PIP_FIND_LINKS"):
        assert name in app.make_module_extra()
    (Path(app.installdir) / "held/hooked").touch()
    assert "PIP_" not in app.make_module_extra()
