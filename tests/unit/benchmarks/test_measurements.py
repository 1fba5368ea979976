"""What is compared."""

import subprocess
import sys

import pytest
from testbed.packages import OPTIONAL_PACKAGES

from benchmarks.measurements import COMPARISONS, HERE, LOCK, TREE
from benchmarks.table import UNITS


def test_names_are_unique():
    names = [each.name for each in COMPARISONS]
    assert len(set(names)) == len(names)


def test_medians_of_seconds_are_of_at_least_7_pairs():
    assert min(each.pairs for each in COMPARISONS if each.unit == "seconds") >= 7


def test_every_unit_can_be_written_and_every_package_be_installed():
    assert {each.unit for each in COMPARISONS} == set(UNITS)
    assert {package for each in COMPARISONS for package in each.packages} <= set(OPTIONAL_PACKAGES)


def test_every_recipe_that_is_measured_is_in_the_tree():
    recipes = {recipe for each in COMPARISONS for recipe in each.recipes}
    assert recipes
    for recipe in recipes:
        assert (TREE / "easyconfigs" / "p" / "PyTorch" / f"{recipe}.eb").is_file()
    assert LOCK.is_file()


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
