"""The results as Markdown."""

import pytest

from benchmarks.experiments import COMPARISONS
from benchmarks.ratio import Ratio
from benchmarks.scale import Cost, World
from benchmarks.table import markdown, quantity, scale_markdown, seconds

COMPARISON = COMPARISONS[0]._replace(
    name="tea", what="tea against water", sides="a cup", target=1.2, anchor="coffee: 3"
)
RATIO = Ratio(a=0.3, b=0.2, low=1.1, high=1.9, pairs=7)


def rows(text):
    """Cells of the lines that are a table's."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def test_a_row_has_both_medians_their_ratio_and_its_spread():
    header, _, row = rows(markdown([(COMPARISON, RATIO)], machine="a laptop"))
    assert dict(zip(header, row)) == {
        "A against B": "tea against water",
        "A": "300 ms",
        "B": "200 ms",
        "A / B": "**1.50**",
        "single pairs": "1.10 to 1.90",
        "target": "≤ 1.2, missed",
        "anchor": "coffee: 3",
    }


@pytest.mark.parametrize(("target", "cell"), [(1.2, "≤ 1.2, missed"), (1.5, "≤ 1.5"), (None, "–")])
def test_a_missed_target_is_marked(target, cell):
    ratio = Ratio(a=3.0, b=2.0, low=1.5, high=1.5, pairs=7)
    assert rows(markdown([(COMPARISON._replace(target=target), ratio)], machine="a laptop"))[-1][-2] == cell


def test_a_target_is_met_by_the_ratio_that_is_printed():
    ratio = Ratio(a=1.404, b=1.0, low=1.4, high=1.4, pairs=7)
    row = rows(markdown([(COMPARISON._replace(target=1.4), ratio)], machine="a laptop"))[-1]
    assert row[3] == "**1.40**"
    assert row[5] == "≤ 1.4"


def test_a_small_ratio_is_not_rounded_to_its_target():
    ratio = Ratio(a=0.0122, b=1.0, low=0.01, high=0.02, pairs=7)
    row = rows(markdown([(COMPARISON._replace(target=0.01), ratio)], machine="a laptop"))[-1]
    assert row[3] == "**0.012**"
    assert row[5] == "≤ 0.01, missed"


def test_the_text_says_what_was_measured_how_often_and_where():
    text = markdown([(COMPARISON, RATIO)], machine="a laptop")
    assert "- `tea`, 7 pairs: a cup\n" in text
    assert "Machine: a laptop.\n" in text


def test_what_was_not_measured_is_said_with_the_reason():
    assert "- `milk`: not measured: no cow\n" in markdown([], machine="a laptop", left_out=[("milk", "no cow")])


def test_every_row_has_as_many_cells_as_the_header():
    table = rows(markdown([(each, RATIO) for each in COMPARISONS], machine="a laptop"))
    assert len(table) == 2 + len(COMPARISONS)
    assert {len(row) for row in table} == {len(table[0])}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0284, "28 ms"), (0.9994, "999 ms"), (0.9996, "1.00 s"), (1.404, "1.40 s"), (46.93, "46.9 s"), (123.4, "123 s")],
)
def test_seconds_have_three_digits(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(1.404, "seconds", "1.40 s"), (39262131, "instructions", "39.3 million"), (351465472, "bytes", "351.5 MB")],
)
def test_a_quantity_has_its_unit(value, unit, text):
    assert quantity(value, unit) == text


def test_both_sides_of_a_row_are_in_the_unit_of_the_comparison():
    ratio = Ratio(a=3e6, b=2e6, low=1.5, high=1.5, pairs=2)
    row = rows(markdown([(COMPARISON._replace(unit="instructions"), ratio)], machine="a laptop"))[-1]
    assert row[1:4] == ["3.0 million", "2.0 million", "**1.50**"]


def test_a_row_of_the_scale_table_has_the_world_the_rank_and_its_cost():
    costs = [
        Cost(World("nid[1-2]", ["nid1", "nid2"]), rank=15, instructions=21_340_000, seconds=0.0123),
        Cost(World("nid[" + 500 * "1,2," + "3]", ["nid1"]), rank=0, instructions=1, seconds=1),
    ]
    text = scale_markdown(costs, gpus=8, repetitions=11, machine="a laptop")
    header, _, short, long = rows(text)
    assert dict(zip(header, short)) == {
        "nodes": "2",
        "node list": "`nid[1-2]`",
        "rank": "15",
        "instructions": "21.3 million",
        "time": "12 ms",
    }
    assert long[1] == "`nid[1,2,1,2,1,2,1,2,1,2,1,2,...`, 2006 characters"
    assert len(long) == len(header)
    assert "8 tasks on every node" in text
    assert "medians of 11" in text
    assert "Machine: a laptop.\n" in text
