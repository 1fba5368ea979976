"""The page of the results: its rows, its table, and its picture are those of the last measurements."""

import re

import pytest

from benchmarks import table
from benchmarks.__main__ import PICTURE
from benchmarks.results import RESULTS, Ratio, Results
from benchmarks.rows import EXPERIMENTS, ROWS, Row
from benchmarks.session import TREE

TEXT = table.PAGE.read_text(encoding="utf-8")
TEA = Row("tea", "tea against water", a="a cup", b="a glass", target=1.2, reference="coffee: 3")
RATIO = Ratio(a=0.3, b=0.2, low=1.1, high=1.9, pairs=7, run="Measured on a laptop.")


def test_every_row_is_measured_once_and_medians_of_seconds_are_of_at_least_7_pairs():
    assert sorted(name for each in EXPERIMENTS for name in each.names) == sorted(ROWS)
    timed = [each for each in EXPERIMENTS if any(ROWS[name].unit == "seconds" for name in each.names)]
    assert [each.names for each in timed if each.rounds < 7] == []
    for recipe in {recipe for each in EXPERIMENTS for recipe in each.recipes}:
        assert list(TREE.glob(f"easyconfigs/*/*/{recipe}.eb"))


def test_the_page_shows_the_last_results_and_has_every_row_or_the_reason_why_not():
    """After a change of a row's words or target: `benchmarks/run --redraw`."""
    assert table.update(TEXT, Results.load(RESULTS)) == TEXT
    rows = re.findall(r"^\| `([\w-]+)` \|", TEXT, re.MULTILINE)
    reasons = re.findall(r"^- `([\w-]+)` (?:was not measured|failed): ", TEXT, re.MULTILINE)
    assert sorted(rows + reasons) == sorted(ROWS)
    with pytest.raises(ValueError, match="0 places for the results"):
        table.update("# Benchmarks\n", Results({}, {}, {}))


def test_the_page_shows_the_picture_of_the_last_results_in_which_a_missed_target_is_one():
    pytest.importorskip("matplotlib")
    from benchmarks.picture import draw

    assert PICTURE.read_text(encoding="utf-8") == draw(Results.load(RESULTS))
    assert f"]({PICTURE.relative_to(table.PAGE.parent)})" in TEXT
    for value, label in ((1.1, "1.10"), (1.3, "1.30, missed")):
        drawn = draw(Results({"launch-host": Ratio(value, 1.0, value, value, 7)}, {}, {}))
        assert label in re.findall(r"<text[^>]*>([^<]*)</text>", drawn)


def cells(monkeypatch, ratio, **words):
    """The text of a table with one row, and the cells of that row."""
    monkeypatch.setattr(table, "ROWS", {"tea": TEA._replace(**words)})
    text = table.results_markdown(Results({"tea": ratio}, {"milk": "no cow"}, {"juice": "`press` failed."}))
    return text, [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")][-1]


def test_a_row_has_both_medians_their_ratio_and_its_spread_and_what_is_missing_has_the_reason(monkeypatch):
    text, row = cells(monkeypatch, RATIO)
    assert row[:4] == ["`tea`", "tea against water", "300 ms", "200 ms"]
    assert row[4:] == ["**1.50**", "1.10 to 1.90 of 7", "≤ 1.2, missed", "coffee: 3"]
    assert "\n- Measured on a laptop.\n" in text
    assert "- `milk` was not measured: no cow.\n- `juice` failed: `press` failed.\n" in text


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
    row = cells(monkeypatch, Ratio(a=a, b=1.0, low=a, high=a, pairs=7), target=target)[1]
    assert (row[4], row[6]) == (ratio, cell)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        *((0.0284, "seconds", "28 ms"), (0.9996, "seconds", "1.00 s"), (46.93, "seconds", "46.9 s")),
        (39262131, "instructions", "39.3 million"),
        (351465472, "bytes", "351.5 MB"),
        (18530.4, "calls", "18,530 calls"),
    ],
)
def test_a_quantity_has_its_unit_and_digits(value, unit, text):
    assert table.quantity(value, unit) == text
