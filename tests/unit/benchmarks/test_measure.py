"""A run of experiments."""

from types import SimpleNamespace

import pytest

from benchmarks import __main__ as command
from benchmarks import measure
from benchmarks.comparison import Comparison, Experiment, compare
from benchmarks.experiments import EXPERIMENTS
from benchmarks.results import Results
from testbed.layout import TestbedError as Error  # pytest would take it for a class of tests

TEA = Comparison(name="tea", title="tea", a="a cup", b="a glass")
MILK = TEA._replace(name="milk")


def steep(_session):
    """Sides that take 3 s and 2 s."""
    return lambda: 3.0, lambda: 2.0


def spill(_session):
    """Sides that fail."""

    def fail():
        raise Error("`cup` failed with status 1.\n    it broke")

    return fail, fail


@pytest.fixture
def layout(tmp_path):
    """A place for scratch directories."""
    return SimpleNamespace(root=tmp_path)


def test_a_failure_leaves_its_rows_out_and_does_not_end_the_others(layout, capsys):
    experiments = [
        compare(MILK, spill, rounds=2, seconds=1, recipes=()),
        compare(TEA, steep, rounds=2, seconds=1, recipes=()),
    ]
    ratios, failures = measure.measure_ratios(layout, experiments, None)
    assert failures == {"milk": "`cup` failed with status 1."}
    assert {name: (ratio.value, ratio.pairs) for name, ratio in ratios.items()} == {"tea": (1.5, 2)}
    assert "it broke" in capsys.readouterr().err
    assert list(layout.root.iterdir()) == []


def test_each_pair_is_reported(layout, capsys):
    measure.measure_ratios(layout, [compare(TEA, steep, rounds=7, seconds=1, recipes=())], 1)
    assert capsys.readouterr().err.splitlines() == [
        "tea, warm-up: 3.00 s against 2.00 s, ratio 1.50",
        "tea, pair 1 of 1: 3.00 s against 2.00 s, ratio 1.50",
    ]


def test_the_expected_time_counts_rounds_preparation_and_the_warm_up():
    experiment = Experiment((TEA,), steep, rounds=7, seconds=10, preparation=5, recipes=())
    assert experiment.expected_seconds() == 85
    assert experiment.expected_seconds(rounds=1) == 25
    assert experiment._replace(warm_up=False).expected_seconds() == 75


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        ({"packages": ("valgrind",)}, "the package valgrind is missing"),
        ({"root": True}, "only root can measure it"),
        ({"container": True}, "no runtime"),
        ({}, None),
    ],
)
def test_rows_that_need_what_is_missing_are_left_out(monkeypatch, conditions, reason):
    monkeypatch.setattr(measure, "find_optional", lambda _: None)
    monkeypatch.setattr(measure.os, "geteuid", lambda: 1000)
    experiment = Experiment((TEA,), steep, rounds=7, seconds=10, recipes=(), **conditions)
    assert measure.reason_against(experiment, "no runtime") == reason


def select(monkeypatch, *arguments):
    """The experiments, and the results, of a command line."""
    selected = []

    def record(_layout, experiments, **_options):
        selected.extend(experiments)
        names = [name for each in experiments for name in each.names]
        return Results(dict.fromkeys(names), {}, {}, [], "Later.")

    monkeypatch.setattr(command.sys, "argv", ["benchmarks/run", *arguments])
    monkeypatch.setattr(command.measure, "measure", record)
    results = command.measure_selected(None, command.parse_arguments())
    return selected, results


def test_a_run_measures_all_rows(monkeypatch):
    selected, results = select(monkeypatch)
    assert selected == list(EXPERIMENTS)
    assert results.notice == ""


def test_one_row_can_be_measured_and_is_not_for_the_page(monkeypatch):
    selected, results = select(monkeypatch, "--only", "rebuild", "--pairs", "1")
    assert [each.names for each in selected] == [("install-image", "rebuild", "rebuild-bytes")]
    assert list(results.ratios) == ["rebuild"]
    assert results.notice == "Not for docs/benchmarks.md: measured with --pairs 1 --only rebuild"


def test_one_row_of_the_page_is_measured_again_and_the_others_stay(monkeypatch, tmp_path):
    page = Results({"import": "old", "rebuild": "old"}, {"cpu": "no"}, {"metadata": "status 1"}, ["cost"], "Run.")
    monkeypatch.setattr(command.Results, "load", lambda _file: page)
    results = select(monkeypatch, "--page", "--only", "rebuild", "--only", "metadata")[1]
    assert results.ratios == {"import": "old", "rebuild": None, "metadata": None}
    assert (results.left_out, results.failures, results.costs, results.notice) == ({"cpu": "no"}, {}, ["cost"], "")
    assert results.run == "Run."
    assert results.later == {"rebuild": "Later.", "metadata": "Later."}


@pytest.mark.parametrize("option", ["--page", "--scale", "--redraw"])
def test_the_page_is_not_written_from_few_pairs(monkeypatch, option):
    with pytest.raises(SystemExit):
        select(monkeypatch, option, "--pairs", "1")
