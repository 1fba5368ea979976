"""What is compared."""

import subprocess
import sys

import pytest
from testbed.layout import TestbedError as Error  # pytest would take it for a class of tests
from testbed.packages import OPTIONAL_PACKAGES

from benchmarks import measurements
from benchmarks.measurements import COMPARISONS, DEFINITION, HERE, LOCK, SOURCES, TREE
from benchmarks.table import UNITS


def test_names_are_unique():
    names = [each.name for each in COMPARISONS]
    assert len(set(names)) == len(names)


def test_medians_of_seconds_are_of_at_least_7_pairs_and_of_3_where_a_pair_takes_minutes():
    for each in COMPARISONS:
        if each.unit == "seconds":
            assert each.pairs >= (7 if each.estimate <= 60 else 5 if each.estimate <= 150 else 3), each.name


def test_every_unit_can_be_written_and_every_package_be_installed():
    assert {each.unit for each in COMPARISONS} == set(UNITS)
    assert {package for each in COMPARISONS for package in each.packages} <= set(OPTIONAL_PACKAGES)


def test_every_recipe_that_is_measured_is_in_the_tree():
    recipes = {recipe for each in COMPARISONS for recipe in each.recipes}
    assert recipes
    for recipe in recipes:
        assert list(TREE.glob(f"easyconfigs/*/*/{recipe}.eb"))
    assert LOCK.is_file()
    assert DEFINITION.is_file()


@pytest.fixture
def cpu_seconds():
    """A function that runs Python code behind `cpu_seconds.py`; it returns the completed process."""

    def run(code):
        command = [HERE / "cpu_seconds.py", sys.executable, "-S", "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


def test_cpu_seconds_are_those_of_the_command_and_of_its_children(cpu_seconds):
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', {burn!r}])"
    for code in (burn, child):
        label, seconds = cpu_seconds(code).stdout.split(": ")
        assert label == "CPU seconds"
        assert 0.2 < float(seconds) < 1


def test_cpu_seconds_of_a_command_that_fails_are_a_failure(cpu_seconds):
    assert cpu_seconds("raise SystemExit(7)").returncode == 7


class Programs:
    """In place of a Session: answers with outputs that were agreed on, and notes the commands."""

    def __init__(self, *outputs):
        self.outputs = list(outputs)
        self.commands = []

    def environment(self, *_commands):
        """The little that is asked for."""
        return {"MNIST_ROOT": "/data"}

    def run(self, command, _env):
        """The next of the outputs."""
        self.commands.append([str(word) for word in command])
        return self.outputs.pop(0)


def trained(accuracy, seconds):
    """What a training tells."""
    return f"epoch 2/2  test accuracy {accuracy} %\ntest accuracy: {accuracy} %\ntraining time: {seconds} s\n"


def test_the_time_to_99_is_that_of_a_training_which_reaches_it():
    ours, textbook = measurements.time_to_99(Programs(trained(99.0, 4.5), trained(99.2, 90.1)))
    assert (ours(), textbook()) == (4.5, 90.1)


def test_a_training_that_misses_99_percent_costs_its_time_and_the_next_ones():
    programs = Programs(trained(98.99, 4.5), trained(99.0, 5.0), trained(99.1, 4.0))
    ours, _ = measurements.time_to_99(programs)
    assert (ours(), ours()) == (9.5, 4.0)
    assert [command[-2:] for command in programs.commands] == [["--seed", "0"], ["--seed", "1"], ["--seed", "2"]]


def test_three_trainings_that_miss_99_percent_are_an_error():
    ours, _ = measurements.time_to_99(Programs(*3 * [trained(98.0, 4.5)]))
    with pytest.raises(Error, match="three times"):
        ours()


def test_lone_runs_count_together_and_two_ranks_once():
    programs = Programs("images/s 20000\n", "images/s 10000\nimages/s 14000\n")
    together, lone = measurements.two_ranks(programs)
    assert (together(), lone()) == (3.0, 2.5)
    assert [command[-2:] for command in programs.commands] == [["--batch-per-rank", "256"]] * 2


def test_a_world_that_fell_apart_is_an_error():
    together, _ = measurements.two_ranks(Programs("images/s 10000\nimages/s 14000\n"))
    with pytest.raises(Error, match="2 runs, not of 1"):
        together()


def test_a_rebuild_counts_new_files_and_not_second_names_of_old_ones(tmp_path):
    """With a stand-in for `eb` that keeps one file and writes another."""
    root = tmp_path / "installation" / "software" / measurements.module(measurements.CONTAINER)

    class Session(Programs):
        scratch = tmp_path

        def run(self, command, _env):
            before = root.with_name("before")
            root.mkdir(parents=True, exist_ok=True)
            root.rename(before)
            root.mkdir()
            if "--force" in command or not (before / "image").exists():
                (root / "image").write_bytes(bytes(1000))
            else:
                (root / "image").hardlink_to(before / "image")
            (root / "script").write_bytes(bytes(10))
            for path in before.iterdir():
                path.unlink()
            before.rmdir()

    kept, anew = measurements.rebuild_bytes(Session())
    assert (kept(), anew(), kept()) == (1010, 1010, 10)
    assert (tmp_path / "tree" / "runscripts" / "get-master").read_text().count("# changed") == 3
    assert {path.name for path in (tmp_path / "tree").iterdir()} == set(SOURCES)
