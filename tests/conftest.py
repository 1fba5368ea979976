"""What all tests share: the testbed's package, the choice of --fast and --thorough, and the table of the slowest."""

import sys
from collections import defaultdict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

#: The files that take longest come first: one that came last would leave the other process idle. While one process
#: installs the two modules for the first of these, the other compiles Horovod.
FIRST = (
    "tests/integration/test_allreduce_on_nodes.py",
    "tests/integration/test_horovod.py",
    "tests/unit/easyblocks/",
    "tests/unit/payload/test_mnist_ddp.py",
    "tests/integration/test_recipes_of_the_seeds.py",
    "tests/integration/test_worlds.py",
)

#: Unit tests that train, or that start many processes: minutes together. --fast leaves them out.
SLOW = ()


def pytest_addoption(parser):
    parser.addoption("--fast", action="store_true", help="leave out the unit tests that train or start many processes")
    parser.addoption("--thorough", action="store_true", help="run the tests marked as thorough, too")
    parser.addoption("--slowest", type=int, default=0, metavar="N", help="end with a table of the N slowest tests")


def pytest_collection_modifyitems(config, items):
    def file(item):
        return item.path.relative_to(config.rootpath).as_posix()

    items.sort(key=lambda item: next((n for n, start in enumerate(FIRST) if file(item).startswith(start)), len(FIRST)))
    if config.getoption("--fast"):
        slow = [item for item in items if file(item).startswith(SLOW)]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
    if not config.getoption("--thorough"):
        skip = pytest.mark.skip(reason="another combination of what is tested anyway: ./run-tests --thorough")
        for item in items:
            if item.get_closest_marker("thorough"):
                item.add_marker(skip)


def pytest_terminal_summary(terminalreporter, config):
    """Print a table of the slowest tests: seconds of fixtures and test, and of the fixtures alone."""
    phases = defaultdict(lambda: defaultdict(float))
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        if hasattr(report, "duration"):
            phases[report.nodeid][report.when] += report.duration
    slowest = sorted(phases, key=lambda test: -sum(phases[test].values()))[: config.getoption("--slowest")]
    if not slowest:
        return
    terminalreporter.section("slowest tests")
    terminalreporter.write_line("seconds  in fixtures  test")
    for test in slowest:
        total, call = sum(phases[test].values()), phases[test]["call"]
        terminalreporter.write_line(f"{total:7.1f}  {total - call:11.1f}  {test.removeprefix('tests/')}")
