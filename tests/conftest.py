"""What all tests share: the testbed's package, and the choice of --fast and --thorough."""

import gc
import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
#: Threads of OpenMP that wait for each other sleep: those of many ranks share two cores here, and would use them up.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
#: Where this is set, print() writes each of its words alone, and the words of two ranks come mixed.
os.environ.pop("PYTHONUNBUFFERED", None)


def pytest_addoption(parser):
    parser.addoption("--fast", action="store_true", help="leave out unit tests that take long")
    parser.addoption("--thorough", action="store_true", help="also run the tests marked as thorough")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect four thousand tests without looking for garbage, and never look at them again: a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config, items):
    """Put the tests in order, leave out the slow ones with --fast, and skip those for --thorough."""
    places = places_of_files(items)
    items.sort(key=lambda item: places[item.path])
    if config.getoption("--fast"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
    if not config.getoption("--thorough"):
        skip = pytest.mark.skip(reason="another combination of what is tested anyway: ./run-tests --thorough")
        for item in items:
            if item.get_closest_marker("thorough"):
                item.add_marker(skip)


def places_of_files(items):
    """Return the place of each file in a run, in which processes take one file after the other.

    First those that are marked as early: at the end, one would leave the other processes idle. Then integration tests,
    which wait, beside unit tests, which compute.
    """
    early = {item.path for item in items if item.get_closest_marker("early")}
    files = list(dict.fromkeys(item.path for item in items if item.path not in early))
    places = dict.fromkeys(early, 0.0)
    for is_integration in (True, False):
        group = [path for path in files if ("integration" in path.parts) is is_integration]
        places.update({path: 1 + number / len(group) for number, path in enumerate(group)})
    return {path: (place, str(path)) for path, place in places.items()}


@pytest.fixture(scope="module", autouse=True)
def environment_as_it_was():
    """What torch exports in the tests' own process, and the signals that a training ignores, end with the module.

    The processes of later tests would inherit both.
    """
    before = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    yield
    os.environ.clear()
    os.environ.update(before)
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)
