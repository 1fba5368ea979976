"""A run of experiments: the order of the sides, what counts, what fails, and one row that is measured again."""

from itertools import count
from types import SimpleNamespace

import pytest

from benchmarks import __main__ as command
from benchmarks import measure
from benchmarks.results import Ratio, Results
from benchmarks.rows import Experiment
from benchmarks.session import NotMeasurable
from testbed.layout import TestbedError as Error  # pytest would take it for a class of tests


def steep(_session):
    """Rounds of the pairs (1, 2), (3, 4), ..."""
    for number in count(1, 2):
        yield [(float(number), float(number + 1))]


def spill(_session):
    """A round that fails."""
    raise Error("`cup` failed with status 1.\n    it broke")
    yield


def thirst(_session):
    """What cannot be measured here."""
    raise NotMeasurable("the package cup is missing")
    yield


def run(tmp_path, *experiments, rounds=2):
    """The Results of some experiments."""
    results = Results({}, {}, {})
    for experiment in experiments:
        measure.measure_experiment(SimpleNamespace(root=tmp_path), experiment, rounds, results)
    assert list(tmp_path.iterdir()) == []
    return results


def test_rows_that_fail_or_cannot_be_measured_do_not_end_the_others(tmp_path, capsys):
    experiments = Experiment(spill, ("save",)), Experiment(thirst, ("install",)), Experiment(steep, ("import",))
    results = run(tmp_path, *experiments)
    assert results.failures == {"save": "`cup` failed with status 1."}
    assert results.left_out == {"install": "the package cup is missing"}
    assert results.ratios["import"].pairs == 2
    assert "it broke" in capsys.readouterr().err


@pytest.mark.parametrize(("warm_up", "pairs"), [(True, ["3.00 s against 4.00 s"]), (False, ["1.00 s against 2.00 s"])])
def test_the_first_round_only_warms_up(tmp_path, capsys, warm_up, pairs):
    ratio = run(tmp_path, Experiment(steep, ("import",), warm_up=warm_up), rounds=1).ratios["import"]
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "pair 1" in line] == [f"import, pair 1 of 1: {pairs[0]}, ratio {ratio.value:.2f}"]
    assert ratio.pairs == 1
    assert sum("pair 0 of" in line for line in lines) == warm_up


def test_a_round_can_have_pairs_of_several_rows_and_the_ratio_is_of_the_medians(tmp_path):
    experiment = Experiment(lambda _: (pair for pair in [[(1.0, 2.0), (3.0, 2.0)]] * 2), ("cpu", "save"), warm_up=False)
    ratios = run(tmp_path, experiment).ratios
    assert {name: (ratio.value, ratio.pairs) for name, ratio in ratios.items()} == {"cpu": (0.5, 2), "save": (1.5, 2)}
    assert Ratio.of([(1.0, 1.0), (30.0, 2.0), (3.0, 2.0)]) == Ratio(a=3.0, b=2.0, low=1.0, high=15.0, pairs=3)


def test_one_row_of_the_page_is_measured_again_and_the_others_stay(monkeypatch):
    def measure_now(_layout, experiments, _rounds):
        return Results({name: "new" for each in experiments for name in each.names}, {}, {})

    page = Results({"import": "old", "rebuild": "old"}, {"cpu": "no"}, {"metadata": "status 1"})
    monkeypatch.setattr(command.Results, "load", lambda _file: page)
    monkeypatch.setattr(command, "measure", measure_now)
    words = ["benchmarks/run", "--page", "--only", "import", "--only", "metadata"]
    monkeypatch.setattr(command.sys, "argv", words)
    results = command.measure_selected(None, command.parse_arguments())
    assert results == Results({"import": "new", "rebuild": "old", "metadata": "new"}, {"cpu": "no"}, {})
