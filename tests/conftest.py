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

#: How the names of the first files of a run begin. The first file installs the venv module, which others need;
#: ./run-tests installs the image meanwhile. Unit tests run beside them, which need nothing installed. Then come long
#: files: at the end, one would leave the other processes idle.
FIRST = (
    "tests/integration/test_recipes_of_the_seeds.py",
    "tests/integration/test_staging.py",
    "tests/unit/payload/test_mnist",
    "tests/unit/runscripts/test_stage.py",
    "tests/unit/easyblocks",
    "tests/integration/images",
    "tests/integration/test_engines_on_nodes.py",
    "tests/integration/test_demo.py",
    "tests/integration/test_worlds.py",
    "tests/integration/test_job_scripts.py",
    "tests/integration/test_spare_nodes.py",
    "tests/integration/test_watching.py",
    "tests/integration/test_packed.py",
    "tests/integration/user_software",
    "tests/integration/test_preemption.py",
    "tests/integration/test_venv_build.py",
    "tests/integration/test_kernels.py",
)

#: How files of unit tests, or single tests, begin that train, start many processes, install, wait or repeat what others
#: test with ten thousand random values: minutes together. --fast leaves them out.
SLOW = (
    "tests/unit/benchmarks/test_counts.py::test_a_program_counts",
    "tests/unit/benchmarks/test_counts.py::test_the_count",
    "tests/unit/benchmarks/test_sides.py::test_the_textbooks",
    "tests/unit/bin/test_squashfs_commands.py",
    "tests/unit/easyblocks/test_pytorchvenv.py::test_an_sdist_that_pip_cannot_fetch",
    "tests/unit/easyblocks/test_recipes.py::test_the_recipes_pass_easybuilds_own_check[--dry-run]",
    "tests/unit/easyblocks/test_users_pip.py",
    "tests/unit/easyblocks/test_wheels.py::test_a_wheel_with",
    "tests/unit/easyblocks/test_wheels.py::test_wheels_with_other_hashes_are_replaced",
    "tests/unit/payload/test_allreduce",
    "tests/unit/payload/test_checkpoint_round_trips.py",
    "tests/unit/payload/test_checkpoint_run.py",
    "tests/unit/payload/test_data.py",
    "tests/unit/payload/test_distributed.py",
    "tests/unit/payload/test_health.py::test_a_rank_that_reads_slowly",
    "tests/unit/payload/test_health.py::test_with_shards",
    "tests/unit/payload/test_inputs.py::test_a_directory_that_is_deleted",
    "tests/unit/payload/test_inputs.py::test_a_wrong_command_line",
    "tests/unit/payload/test_inputs.py::test_the_longest",
    "tests/unit/payload/test_ladder.py",
    "tests/unit/payload/test_language_parts.py::test_the_sizes",
    "tests/unit/payload/test_lm_fsdp.py",
    "tests/unit/payload/test_mnist",
    "tests/unit/payload/test_not_finite.py",
    "tests/unit/payload/test_page_loop.py",
    "tests/unit/payload/test_profiling.py",
    "tests/unit/payload/test_sharded_checkpoints.py",
    "tests/unit/payload/test_stopping.py",
    "tests/unit/reframe/test_reframe_sites.py",
    "tests/unit/releases/test_new_release.py",
    "tests/unit/runscripts/commands/test_wheel.py",
    "tests/unit/runscripts/test_claim.py",
    "tests/unit/runscripts/test_cores.py::test_shares_are_disjoint",
    "tests/unit/runscripts/test_nodelist.py::test_random_lists",
    "tests/unit/runscripts/test_stage.py::test_a_shell_that_is_killed",
    "tests/unit/website/test_site.py",
)


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
    """Put the tests in order, leave out those that --fast leaves out, and skip those for --thorough."""
    missing = [start for start in FIRST + SLOW if not any(config.rootpath.glob(f"{start.partition('::')[0]}*"))]
    if missing:
        raise pytest.UsageError(f"tests/conftest.py lists files that do not exist: {', '.join(missing)}")

    def file(item):
        return item.path.relative_to(config.rootpath).as_posix()

    place = places(list(dict.fromkeys(map(file, items))))
    items.sort(key=lambda item: place[file(item)])
    if config.getoption("--fast"):
        slow = [item for item in items if item.nodeid.startswith(SLOW)]
        config.hook.pytest_deselected(items=slow)
        left_out = set(slow)
        items[:] = [item for item in items if item not in left_out]
    if not config.getoption("--thorough"):
        skip = pytest.mark.skip(reason="another combination of what is tested anyway: ./run-tests --thorough")
        for item in items:
            if item.get_closest_marker("thorough"):
                item.add_marker(skip)


def places(files):
    """Return the place of each file in a run: first those of FIRST.

    Then integration tests, which wait, beside unit tests, which compute. Short unit tests are last, so that all
    processes end together.
    """
    first = {name: n for n, start in reversed(list(enumerate(FIRST))) for name in files if name.startswith(start)}
    rest = [name for name in files if name not in first]
    waiting = [name for name in rest if name.startswith("tests/integration/")]
    computing = [name for name in rest if name not in waiting]
    shares = {name: 0.8 * n / len(waiting) for n, name in enumerate(waiting)}
    shares.update({name: n / len(computing) for n, name in enumerate(computing)})
    return {name: (first.get(name, len(FIRST)), shares.get(name, 0), name) for name in files}


@pytest.fixture(scope="module", autouse=True)
def environment_as_it_was():
    """What torch exports in the tests' own process, and the signals that a training ignores, end with the module.

    The processes of later tests would inherit both.
    """
    before, handlers = dict(os.environ), {number: signal.getsignal(number) for number in signal.valid_signals()}
    yield
    os.environ.clear()
    os.environ.update(before)
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)
