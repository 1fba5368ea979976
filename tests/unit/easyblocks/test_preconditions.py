"""Checks before the first step of an installation."""

import subprocess
import sys
from pathlib import Path

import pytest
from easybuild.framework.easyblock import EasyBlock
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import update_build_option
from recipes import TREE, VENV, recipe

from pytorch_install.parameters import check_path


@pytest.mark.parametrize("character", " ,:'\"$`\\\t")
def test_a_path_with_characters_that_break_binds_or_scripts_is_refused(character):
    check_path("/appl/local/csc-2.0/ai_software/Jos\u00e9/@sys/c++~/PyTorch/2.13.0-cpu=x%y")
    with pytest.raises(EasyBuildError, match=r"The path /srv/.*/software has '.' in it, .* --prefix or --installpath"):
        check_path(f"/srv/a{character}b/software")


def test_eb_refuses_such_a_path_before_fetching(easyblock, edited):
    with pytest.raises(EasyBuildError, match="has ',' in it"):
        easyblock(edited(VENV, "versionsuffix = '", "versionsuffix = '-my,own"))


@pytest.fixture
def installed(easyblock, monkeypatch):
    """The venv's easyblock, whose module exists; EasyBuild's part of post_init is left out."""
    monkeypatch.setattr(EasyBlock, "post_init", lambda _: None)
    app = easyblock(recipe(VENV))
    Path(app.mod_filepath).parent.mkdir(parents=True)
    Path(app.mod_filepath).touch()
    return app


def test_a_venv_that_is_installed_is_not_rebuilt_under_running_jobs(installed):
    with pytest.raises(EasyBuildError, match=rf"files that running jobs import\. .* run `eb --force {VENV}`"):
        installed.post_init()


@pytest.mark.parametrize("option", ["force", "module_only", "sanity_check_only"])
def test_force_rebuilds_it_and_options_that_replace_no_files_need_no_force(installed, option):
    update_build_option(option, True)
    installed.post_init()


def test_eb_fetch_and_a_first_installation_need_no_force(installed):
    installed.cfg["stop"] = "fetch"
    installed.post_init()
    installed.cfg["stop"] = None
    Path(installed.mod_filepath).unlink()
    installed.post_init()


@pytest.mark.parametrize("version", ["4.9.4", "5.0.0"])
def test_an_older_easybuild_is_one_sentence(version):
    code = (
        "import runpy, easybuild.tools.version as version; "
        f"version.VERSION = type(version.VERSION)('{version}'); "
        f"runpy.run_path('{TREE}/easyblocks/pytorchmodule.py')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"need EasyBuild 5.1 or newer, and this is {version}." in result.stderr.splitlines()[-1]
