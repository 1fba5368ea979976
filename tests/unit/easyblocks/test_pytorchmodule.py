"""PyTorch's easyblocks: generated modules, errors before and during an installation, and the files that it leaves."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from easybuild.framework.easyblock import StopException
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import update_build_option
from recipes import CONTAINER, TREE, VENV, both_syntaxes, module_text, recipe

from pytorch_install import runtime, tree
from pytorch_install.parameters import check_path

pytestmark = pytest.mark.early


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
    assert app.tweaked_env_vars["PYTORCH_LAUNCH_ACTIVE"] == "0"  # EasyBuild's own environment may be on PATH
    assert len(commands) == 2
    assert all(command.startswith(f'{runtime} exec --bind "$TMPDIR" "$SIF" conda-') for command in commands)


@both_syntaxes
@pytest.mark.parametrize(
    ("name", "runtime"),
    [
        ("PyTorch-2.3.1-rocm-6.0.3-python-3.12-singularity-20240923.eb", "ROCm 6.0"),
        ("PyTorch-2.0.1-rocm-5.4.2-python-3.11-cotainr.eb", "ROCm 5.4"),
        ("PyTorch-2.15.0-cuda-13.2-perlmutter-venv.eb", "CUDA 13.2"),
        # so that the profile does not read the value of a module that this one replaces
        (VENV, "none -"),
    ],
)
def test_the_profile_is_told_cuda_or_rocm_before_it_is_loaded(easyblock, name, runtime):
    text = module_text(easyblock(recipe(name)))
    told = re.findall(r'setenv\W+__PYTORCH_RUNTIME\W+"?([^"\n]+?)"?\)?$', text, re.MULTILINE)
    assert told == [runtime]
    assert "__PYTORCH_RUNTIME" not in text[text.index("cluster/") :]


@both_syntaxes
def test_modules_that_cannot_be_loaded_beside_it_are_those_of_the_recipe(easyblock, edited):
    assert re.search(r"^conflict\W+pytorch\b", module_text(easyblock(recipe(VENV))), re.MULTILINE)
    text = module_text(easyblock(edited(VENV, "cluster = 'local'", "conflicts = ['singularity-AI-bindings']")))
    assert re.search(r"^conflict\W+singularity-AI-bindings\b", text, re.MULTILINE)
    assert not re.search(r"^conflict\W+pytorch\b", text, re.MULTILINE)


@both_syntaxes
def test_the_home_of_another_python_does_not_reach_that_of_a_venv_module(easyblock):
    """A Python older than 3.7 cannot start with an empty one, so it is not set where there is none."""
    text = module_text(easyblock(recipe(VENV)))
    assert re.search(r'^if\W.*PYTHONHOME.*\n\s+(?:pushenv|set)\W+PYTHONHOME\W+""\)?$', text, re.MULTILINE)


@both_syntaxes
def test_only_where_python_does_not_change_pip_the_module_sets_its_variables(easyblock, monkeypatch, tmp_path):
    metadata = tmp_path / "packages/torch-2.13.0.dist-info/METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n")
    app = easyblock(recipe(VENV))
    assert "PIP_CONSTRAINT" not in module_text(app)
    python = ["env", f"PYTHONPATH={tmp_path}/packages", sys.executable, "-s", "-S"]
    monkeypatch.setattr(app, "runtime_python", lambda: python)
    app.install_runtime = app.install_tree = lambda: None
    app.install_step()
    assert re.search("^torch==2", (Path(app.installdir) / "constraints.txt").read_text(), re.MULTILINE)
    assert (Path(app.installdir) / "held/users_pip.py").exists()
    for name in ("PIP_CONSTRAINT", "PIP_FIND_LINKS"):
        assert name in app.make_module_extra()
    (Path(app.installdir) / "held/hooked").touch()
    assert "PIP_" not in app.make_module_extra()


def test_without_a_container_runtime_the_error_reports_what_to_install(easyblock, monkeypatch):
    monkeypatch.setattr("pytorch_install.parameters.containerimage.which", lambda _: None)
    with pytest.raises(EasyBuildError, match="Install Apptainer or load its module"):
        easyblock(recipe(CONTAINER)).configure_step()


def test_the_error_names_the_python_that_a_venv_lacks(easyblock, edited):
    app = easyblock(edited(VENV, "python_version = '3.11'", "python_version = '2.99'"))
    app.src = [{"name": "lock.txt", "path": "/lock.txt"}]
    with pytest.raises(EasyBuildError, match=r"python2\.99 not found on PATH"):
        app.configure_step()


def test_the_recipes_commands_are_offered_and_python_and_pip_with_their_version(easyblock, edited, monkeypatch):
    commands = "toolchain = SYSTEM\ncommands = ['pip', 'python', 'no-such']"
    app = easyblock(edited(CONTAINER, "toolchain = SYSTEM", commands))
    monkeypatch.setattr(app, "runtime_python", lambda: [sys.executable])
    monkeypatch.setattr(app.user_software, "prepare", lambda _: None)
    app.make_installdir()
    tree.install_parts(app.installdir)
    app.install_tree()
    links = {path.name: str(path.readlink()) for path in (Path(app.installdir) / "bin").iterdir() if path.is_symlink()}
    version = ".".join(map(str, sys.version_info[:2]))
    # one that the image lacks is an error there, not the host's command of this name
    offered = ["pip", "python", f"pip{version}", f"python{version}", "no-such", "start-shell"]
    assert {name: links.get(name) for name in offered} == dict.fromkeys(offered, "../libexec/enter")
    assert "pip3" not in links


def test_the_sanity_checks_module_can_be_read_by_others_so_that_lmod_shows_it_to_root(easyblock, prefix):
    app = easyblock(recipe(CONTAINER))
    app.src = []
    Path(app.installdir).mkdir(parents=True)
    before = os.umask(0o027)
    try:
        modules = Path(app.make_module_step(fake=True))
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o004 for path in modules.rglob("*") if path.is_file()]
    assert modes and all(modes)


def test_stop_after_the_install_step_restores_the_previous_module(easyblock, monkeypatch, capsys):
    app = easyblock(recipe(VENV))
    for method in ("install_runtime", "install_tree"):
        monkeypatch.setattr(app, method, lambda: None)
    monkeypatch.setattr(runtime, "hold_packages", lambda *_: None)
    app.cfg["stop"] = "install"
    root = Path(app.installdir)
    module = Path(app.mod_filepath)
    for path in (root / "old", module):
        path.parent.mkdir(parents=True)
        path.touch()
    with pytest.raises(StopException):
        app.run_step("install", [lambda app: app.make_installdir, lambda app: app.install_step])
    assert module.exists() and (root / "old").exists() and not (root / "payload").exists()
    assert "is as it was before" in capsys.readouterr().out


@pytest.mark.parametrize("character", " ,:'\"$`\\\t%")
def test_a_path_with_characters_that_break_binds_or_scripts_is_refused(character):
    check_path("/appl/local/csc-2.0/ai_software/Jos\u00e9/@sys/c++~/PyTorch/2.13.0-cpu=x")
    with pytest.raises(EasyBuildError, match=r"The path /srv/.*/software has '.' in it, .* --prefix or --installpath"):
        check_path(f"/srv/a{character}b/software")


def test_a_venv_that_jobs_may_use_is_rebuilt_by_force_alone(easyblock):
    app = easyblock(recipe(VENV))
    module = Path(app.mod_filepath)
    module.parent.mkdir(parents=True)
    module.touch()
    with pytest.raises(EasyBuildError, match=rf"files that running jobs import\. .* run `eb --force {VENV}`"):
        app.configure_step()
    update_build_option("force", True)
    app.configure_step()


@pytest.mark.parametrize("version", ["4.9.4", "5.0.0"])
def test_an_older_easybuild_is_one_sentence(version):
    code = (
        "import runpy, easybuild.tools.version as version; "
        f"version.VERSION = type(version.VERSION)('{version}'); "
        f"runpy.run_path('{TREE}/easyblocks/pytorchmodule.py')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"need EasyBuild 5.1 or newer, and this is {version}." in result.stderr.splitlines()[-1]
