"""Which recipes the testbed installs, and when an installation is up to date."""

import re

import pytest

from testbed import recipes
from testbed.layout import Layout


@pytest.fixture
def layout(tmp_path):
    layout = Layout(tmp_path / "testbed")
    layout.claim()
    return layout


def test_an_installation_is_current_with_the_settings_that_it_was_made_with(layout):
    assert not recipes.is_current(layout, recipes.VENV)
    recipes.note_installed(layout, recipes.VENV, "export CFLAGS=-O0")
    assert recipes.is_current(layout, recipes.VENV, "export CFLAGS=-O0")
    assert not recipes.is_current(layout, recipes.VENV)
    assert recipes.install_command(layout, recipes.VENV) == f"eb {recipes.VENV}.eb"
    (layout.modules / "PyTorch").mkdir(parents=True)
    (layout.modules / f"{recipes.module(recipes.VENV)}.lua").touch()
    assert recipes.install_command(layout, recipes.VENV) == f"eb --force {recipes.VENV}.eb"
    assert recipes.install_command(layout, recipes.VENV, "export CFLAGS=-O0") == f"eb {recipes.VENV}.eb"


def test_the_recipes_are_those_of_the_newest_pytorch_for_cpus():
    names = [path.name for path in recipes.EASYCONFIGS.glob("PyTorch-*-cpu-venv.eb")]
    assert f"{recipes.VENV}.eb" in names
    assert (recipes.EASYCONFIGS / f"{recipes.CONTAINER}.eb").exists()
    assert re.search(rf"^torch=={re.escape(recipes.VERSION)}\+cpu ", recipes.LOCK.read_text(), re.MULTILINE)
