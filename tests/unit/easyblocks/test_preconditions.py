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


@pytest.mark.parametrize("option", ["force", "module_only", "sanity_check_only", "fetch", "first"])
def test_a_venv_that_jobs_may_use_is_rebuilt_by_force_alone_and_what_replaces_no_files_needs_none(
    easyblock, monkeypatch, option
):
    monkeypatch.setattr(EasyBlock, "post_init", lambda _: None)
    app = easyblock(recipe(VENV))
    module = Path(app.mod_filepath)
    module.parent.mkdir(parents=True)
    module.touch()
    with pytest.raises(EasyBuildError, match=rf"files that running jobs import\. .* run `eb --force {VENV}`"):
        app.post_init()
    if option == "fetch":
        app.cfg["stop"] = "fetch"
    elif option == "first":
        module.unlink()
    else:
        update_build_option(option, True)
    app.post_init()


@pytest.mark.parametrize("version", ["4.9.4", "5.0.0"])
def test_an_older_easybuild_is_one_sentence(version):
    code = (
        "import runpy, easybuild.tools.version as version; "
        f"version.VERSION = type(version.VERSION)('{version}'); "
        f"runpy.run_path('{TREE}/easyblocks/pytorchmodule.py')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"need EasyBuild 5.1 or newer, and this is {version}." in result.stderr.splitlines()[-1]
