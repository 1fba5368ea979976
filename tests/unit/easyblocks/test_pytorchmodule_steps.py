"""The easyblocks' steps: errors before and during an installation, and the files that it leaves."""

import sys
from pathlib import Path

import pytest
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import update_build_option
from recipes import CONTAINER, VENV, recipe


def test_without_a_container_runtime_the_error_reports_what_to_install(easyblock, monkeypatch):
    monkeypatch.setattr("pytorch_install.parameters.containerimage.which", lambda _: None)
    with pytest.raises(EasyBuildError, match="Install Apptainer or load its module"):
        easyblock(recipe(CONTAINER)).configure_step()


def test_the_error_names_the_python_that_a_venv_lacks(easyblock, edited):
    app = easyblock(edited(VENV, "python_version = '3.11'", "python_version = '2.99'"))
    app.src = [{"name": "lock.txt", "path": "/lock.txt"}]
    with pytest.raises(EasyBuildError, match=r"python2\.99 not found on PATH"):
        app.configure_step()


def test_an_unknown_cluster_profile_is_named_with_those_that_exist_before_anything_is_fetched(easyblock, edited):
    with pytest.raises(EasyBuildError, match=r"profile not found: nowhere in .*one of: .*local"):
        easyblock(edited(VENV, "cluster = 'local'", "cluster = 'nowhere'"))


def test_the_payload_can_be_edited_after_cp_and_the_tree_has_no_bytecode_of_the_checkout(easyblock, monkeypatch):
    app = easyblock(recipe(VENV))
    monkeypatch.setattr(app, "compile_bytecode", lambda: None)
    app.make_installdir()
    app.install_scripts()
    app.install_tree()
    update_build_option("read_only_installdir", True)
    app.permissions_step()
    modes = {path: path.stat().st_mode & 0o222 for path in Path(app.installdir).rglob("*") if not path.is_symlink()}
    payload = Path(app.installdir, "payload")
    assert not list(Path(app.installdir).rglob("*.pyc"))
    assert {mode for path, mode in modes.items() if payload in (path, *path.parents)} == {0o200}
    assert {mode for path, mode in modes.items() if payload not in (path, *path.parents)} == {0}
    Path(app.installdir).chmod(0o755)  # for the removal


def test_commands_that_the_image_lacks_are_named_and_not_offered(easyblock, edited, monkeypatch, capsys, tmp_path):
    commands = "toolchain = SYSTEM\ncommands = ['pip', 'python', 'sh', 'no-such', 'of-conda']"
    app = easyblock(edited(CONTAINER, "toolchain = SYSTEM", commands))
    runtime = tmp_path / "runtime"
    runtime.write_text('#!/bin/sh\nshift 2\necho "of a profile"\nexec "$@"\n')
    runtime.chmod(0o755)
    monkeypatch.setattr("pytorch_install.parameters.containerimage.find_runtime", lambda: str(runtime))
    (tmp_path / "conda").mkdir()
    (tmp_path / "conda" / "of-conda").touch(mode=0o755)  # bin/ does not activate the image's environment
    monkeypatch.setattr(app, "runtime_python", lambda: ["env", f"PATH={tmp_path}/conda:/bin", sys.executable])
    monkeypatch.setattr(app.user_software, "prepare", lambda _: None)
    app.make_installdir()
    app.install_scripts()
    app.install_tree()
    links = {path.name: str(path.readlink()) for path in (Path(app.installdir) / "bin").iterdir() if path.is_symlink()}
    version = ".".join(map(str, sys.version_info[:2]))
    offered = ["pip", "python", f"pip{version}", f"python{version}", "sh", "start-shell"]
    assert {name: links.get(name) for name in [*offered, "pip3", "no-such", "of-conda"]} == {
        **dict.fromkeys(offered, "../libexec/enter"),
        "pip3": None,
        "no-such": None,
        "of-conda": None,
    }
    assert "the image does not have on its PATH: no-such, of-conda\n" in capsys.readouterr().err
