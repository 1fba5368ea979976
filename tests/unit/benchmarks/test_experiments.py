"""What is compared, and how long it takes."""

from benchmarks.__main__ import expected_minutes
from benchmarks.comparison import PROGRAMS, TREE
from benchmarks.experiments import COMPARISONS, EXPERIMENTS
from benchmarks.experiments.install import LOCK
from benchmarks.experiments.install_image import DEFINITION, PARTS
from benchmarks.table import UNITS
from testbed.packages import OPTIONAL_PACKAGES


def test_names_are_unique():
    names = [each.name for each in COMPARISONS]
    assert len(set(names)) == len(names)


def test_medians_of_seconds_are_of_at_least_7_pairs():
    for experiment in EXPERIMENTS:
        if any(each.unit == "seconds" for each in experiment.comparisons):
            assert experiment.rounds >= 7, experiment.names


def test_all_rows_take_55_minutes_as_on_the_page():
    assert expected_minutes() <= 55
    assert "about 55 minutes on two idle cores" in (TREE / "docs" / "benchmarks.md").read_text()


def test_every_unit_can_be_written_and_every_package_can_be_installed():
    assert {each.unit for each in COMPARISONS} == set(UNITS)
    assert {package for each in EXPERIMENTS for package in each.packages} <= set(OPTIONAL_PACKAGES)


def test_every_recipe_that_is_measured_is_in_the_tree():
    recipes = {recipe for each in EXPERIMENTS for recipe in each.recipes}
    assert recipes
    for recipe in recipes:
        assert list(TREE.glob(f"easyconfigs/*/*/{recipe}.eb"))
    assert LOCK.is_file()
    assert DEFINITION.is_file()


def test_every_part_of_an_installation_is_in_the_tree():
    assert {"easyblocks", "easyconfigs", "libexec", "modulefiles", "runscripts", "payload"} <= PARTS
    assert all((TREE / part).is_dir() for part in PARTS)


def test_every_program_is_named_by_an_experiment_or_by_another_program():
    experiments = [*(TREE / "benchmarks").glob("experiments/*.py"), TREE / "benchmarks" / "store.py"]
    files = [*experiments, *(path for path in PROGRAMS.iterdir() if path.is_file())]
    texts = {file: file.read_text() for file in files}
    for program in PROGRAMS.iterdir():
        if program.is_file():
            assert any(program.name in text for file, text in texts.items() if file != program), program.name
