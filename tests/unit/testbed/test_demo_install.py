"""How the demo installs a recipe."""

import fcntl

import pytest

from testbed import demo
from testbed.layout import Layout


@pytest.mark.parametrize("part", [demo.VENV, "sources"])
def test_no_other_installation_of_the_recipe_or_its_wheels_runs_at_the_same_time(tmp_path, monkeypatch, part):
    layout = Layout(tmp_path)
    layout.claim()

    def install(_layout, _command):
        with (layout.temporary / f"{part}.lock").open("a") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    monkeypatch.setattr(demo, "run_shown", install)
    demo.install(layout, demo.VENV)
