"""Puts the testbed's package on the import path of all tests, and leaves repetitions to --thorough."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def pytest_addoption(parser):
    parser.addoption("--thorough", action="store_true", help="run what is marked as thorough, too")


#: While one process installs the two modules for the first of these, the other has something to do. Then the files that
#: take minutes: one that came last would leave the other process idle.
FIRST = (
    "tests/integration/test_allreduce_on_nodes.py",
    "tests/unit/easyblocks/",
    "tests/integration/test_horovod.py",
    "tests/unit/payload/test_mnist_resuming.py",
    "tests/integration/test_recipes_of_the_seeds.py",
    "tests/integration/test_worlds.py",
)


def pytest_collection_modifyitems(config, items):
    def place(item):
        path = item.path.relative_to(config.rootpath).as_posix()
        return next((number for number, start in enumerate(FIRST) if path.startswith(start)), len(FIRST))

    items.sort(key=place)
    if config.getoption("--thorough"):
        return
    skip = pytest.mark.skip(reason="another combination of what is tested anyway: ./run-tests --thorough")
    for item in items:
        if item.get_closest_marker("thorough"):
            item.add_marker(skip)
