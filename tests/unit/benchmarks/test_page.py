"""The page of the results: its rows and its table are those of the last measurements."""

import re

import pytest

from benchmarks import table
from benchmarks.results import RESULTS, Ratio, Results
from benchmarks.rows import EXPERIMENTS, ROWS, Row
from benchmarks.session import TREE

TEXT = table.PAGE.read_text(encoding="utf-8")


def test_every_row_is_measured_once_and_medians_of_seconds_are_of_at_least_7_pairs():
    assert sorted(name for each in EXPERIMENTS for name in each.names) == sorted(ROWS)
    for each in EXPERIMENTS:
        assert each.rounds >= 7 or "seconds" not in [ROWS[name].unit for name in each.names], each.names
        for recipe in each.recipes:
            assert list(TREE.glob(f"easyconfigs/*/*/{recipe}.eb"))


def test_the_page_shows_the_last_results_and_has_every_row_or_the_reason_why_not():
    """After a change of a row's words or target: `benchmarks/run --redraw`."""
    assert table.update(TEXT, Results.load(RESULTS)) == TEXT
    rows = re.findall(r"^\| `([\w-]+)` \|", TEXT, re.MULTILINE)
    reasons = re.findall(r"^- `([\w-]+)` (?:was not measured|failed): ", TEXT, re.MULTILINE)
    assert sorted(rows + reasons) == sorted(ROWS)
    missing = table.results_markdown(Results({}, {"cpu": "no srun"}, {"save": "status 1"}))
    assert missing.endswith("- `cpu` was not measured: no srun.\n- `save` failed: status 1\n")
    with pytest.raises(ValueError, match="0 places for the results"):
        table.update("# Benchmarks\n", Results({}, {}, {}))


@pytest.mark.parametrize(
    ("a", "target", "ratio", "cell"),
    [
        (1.5, 1.2, "**1.50**", "≤ 1.2, missed"),
        (1.5, 1.5, "**1.50**", "≤ 1.5"),
        (1.5, None, "**1.50**", "–"),
        (1.404, 1.4, "**1.40**", "≤ 1.4"),  # a target is met by the ratio that is printed
        (0.0122, 0.01, "**0.012**", "≤ 0.01, missed"),  # a small ratio is not rounded to its target
    ],
)
def test_a_missed_target_is_marked(monkeypatch, a, target, ratio, cell):
    monkeypatch.setattr(table, "ROWS", {"tea": Row("tea", "tea against water", a="a cup", b="a glass", target=target)})
    text = table.results_markdown(Results({"tea": Ratio(a=a, b=1.0, low=a, high=a, pairs=1)}, {}, {}))
    assert f"| {ratio} | – | {cell} | – |" in text
