"""The recipes of this tree, for the tests that go over all of them."""

from pathlib import Path

TREE = Path(__file__).resolve().parents[3]
RECIPES = sorted(TREE.glob("easyconfigs/*/*/*.eb"))
