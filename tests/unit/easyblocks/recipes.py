"""The recipes of this tree, for the tests that go over all of them."""

from pathlib import Path

TREE = Path(__file__).resolve().parents[3]
RECIPES = sorted(TREE.glob("easyconfigs/*/*/*.eb"))
CONTAINER = "PyTorch-2.13.0-cpu-singularity.eb"
VENV = "PyTorch-2.13.0-cpu-venv.eb"


def recipe(name):
    return next(path for path in RECIPES if path.name == name)
