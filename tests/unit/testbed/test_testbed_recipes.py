"""When an installation of the testbed is up to date."""

from testbed import recipes
from testbed.layout import Layout


def test_an_installation_is_current_with_the_settings_that_it_was_made_with(tmp_path):
    layout = Layout(tmp_path / "testbed")
    layout.claim()
    assert not recipes.is_current(layout, recipes.VENV)
    recipes.note_installed(layout, recipes.VENV, "export CFLAGS=-O0")
    assert recipes.is_current(layout, recipes.VENV, "export CFLAGS=-O0")
    assert not recipes.is_current(layout, recipes.VENV)
    assert recipes.install_command(layout, recipes.VENV) == f"eb {recipes.VENV}.eb"
    (layout.modules / "PyTorch").mkdir(parents=True)
    (layout.modules / f"{recipes.module(recipes.VENV)}.lua").touch()
    assert recipes.install_command(layout, recipes.VENV) == f"eb --force {recipes.VENV}.eb"
    assert recipes.install_command(layout, recipes.VENV, "export CFLAGS=-O0") == f"eb {recipes.VENV}.eb"
