"""The results as Markdown."""

import pytest

from benchmarks.experiments import COMPARISONS
from benchmarks.ratio import Ratio
from benchmarks.results import Results
from benchmarks.scale import Cost
from benchmarks.store import Served
from benchmarks.table import decimals, quantity, results_markdown, scale_markdown, seconds

COMPARISON = COMPARISONS[0]._replace(
    name="tea", title="tea against water", a="a cup", b="a glass", target=1.2, reference="coffee: 3"
)
RATIO = Ratio(a=0.3, b=0.2, low=1.1, high=1.9, pairs=7)


def results(ratios, left_out=(), failures=(), notice="", later=()):
    """The Results of a run on a laptop."""
    return Results(dict(ratios), dict(left_out), dict(failures), [], "Measured on a laptop.", notice, dict(later))


def markdown(ratio=RATIO, comparison=COMPARISON, **others):
    """The text of a table with one row."""
    return results_markdown(results({comparison.name: ratio}, **others), [comparison])


def rows(text):
    """Cells of the lines of a table."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def test_a_row_has_both_medians_their_ratio_and_its_spread():
    header, _, row = rows(markdown())
    assert dict(zip(header, row)) == {
        "row": "`tea`",
        "A against B": "tea against water",
        "A": "300 ms",
        "B": "200 ms",
        "A / B": "**1.50**",
        "single pairs": "1.10 to 1.90",
        "target": "≤ 1.2, missed",
        "elsewhere": "coffee: 3",
    }


@pytest.mark.parametrize(("target", "cell"), [(1.2, "≤ 1.2, missed"), (1.5, "≤ 1.5"), (None, "–")])
def test_a_missed_target_is_marked(target, cell):
    ratio = Ratio(a=3.0, b=2.0, low=1.5, high=1.5, pairs=7)
    assert rows(markdown(ratio, COMPARISON._replace(target=target)))[-1][-2] == cell


def test_a_target_is_met_by_the_ratio_that_is_printed():
    ratio = Ratio(a=1.404, b=1.0, low=1.4, high=1.4, pairs=7)
    row = rows(markdown(ratio, COMPARISON._replace(target=1.4)))[-1]
    assert row[4] == "**1.40**"
    assert row[6] == "≤ 1.4"


def test_a_small_ratio_is_not_rounded_to_its_target():
    ratio = Ratio(a=0.0122, b=1.0, low=0.01, high=0.02, pairs=7)
    row = rows(markdown(ratio, COMPARISON._replace(target=0.01)))[-1]
    assert row[4] == "**0.012**"
    assert row[6] == "≤ 0.01, missed"


@pytest.mark.parametrize(("ratio", "text"), [(1.234, "1.23"), (0.1, "0.10"), (0.0102, "0.010"), (0.00214, "0.0021")])
def test_a_ratio_has_two_digits_also_if_the_second_is_0(ratio, text):
    assert decimals(ratio) == text


def test_one_pair_has_no_spread():
    assert rows(markdown(RATIO._replace(pairs=1)))[-1][5] == "–"


def test_the_text_states_what_was_measured_how_often_and_where():
    text = markdown()
    assert "- `tea`, 7 pairs. A: a cup. B: a glass.\n" in text
    assert "\nMeasured on a laptop.\n" in text


def test_rows_of_a_later_run_are_named_with_that_run():
    text = markdown(later={"tea": "Measured at noon.", "milk": "Measured at noon.", "juice": "Measured at two."})
    assert "\nLater run of `tea`, `milk`: Measured at noon.\nLater run of `juice`: Measured at two.\n" in text


def test_what_was_not_measured_or_failed_is_listed_with_the_reason():
    text = markdown(left_out={"milk": "no cow"}, failures={"juice": "`press` failed with status 1."})
    assert "- `milk` was not measured: no cow.\n" in text
    assert "- `juice` failed: `press` failed with status 1.\n" in text


def test_the_text_of_a_reduced_run_starts_with_a_notice():
    assert markdown(notice="Not for the page").startswith("**Not for the page**\n\n|")


def test_every_row_has_as_many_cells_as_the_header_and_rows_keep_their_order():
    ratios = {each.name: RATIO for each in reversed(COMPARISONS)}
    header, _, *body = rows(results_markdown(results(ratios), COMPARISONS))
    assert [row[0] for row in body] == [f"`{each.name}`" for each in COMPARISONS]
    assert {len(row) for row in body} == {len(header)}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0284, "28 ms"), (0.9994, "999 ms"), (0.9996, "1.00 s"), (1.404, "1.40 s"), (46.93, "46.9 s"), (123.4, "123 s")],
)
def test_seconds_have_three_digits(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.404, "seconds", "1.40 s"),
        (39262131, "instructions", "39.3 million"),
        (351465472, "bytes", "351.5 MB"),
        (18530.4, "calls", "18,530 calls"),
    ],
)
def test_a_quantity_has_its_unit(value, unit, text):
    assert quantity(value, unit) == text


def test_both_sides_of_a_row_are_in_the_unit_of_the_comparison():
    ratio = Ratio(a=3e6, b=2e6, low=1.5, high=1.5, pairs=2)
    row = rows(markdown(ratio, COMPARISON._replace(unit="instructions")))[-1]
    assert row[2:5] == ["3.0 million", "2.0 million", "**1.50**"]


def test_a_row_of_the_scale_table_has_the_world_the_rank_and_its_cost():
    costs = [Cost(nodes=2, node_list="`nid[1-2]`", rank=15, instructions=21_340_000, seconds=0.0123)]
    text = scale_markdown(costs, gpus=8, repetitions=11)
    header, _, row = rows(text)
    served = ("connections, files", "bytes, NCCL", "bytes, gloo", "memory", "set")
    assert dict(zip(header, row)) == {
        "nodes": "2",
        "node list": "`nid[1-2]`",
        "rank": "15",
        "instructions": "21.3 million",
        "time": "12 ms",
        **dict.fromkeys(served, "–"),
    }
    assert "8 tasks per node" in text
    assert "medians of 11" in text


def test_a_row_of_rank_0_has_what_its_store_serves_and_marks_what_is_computed():
    cost = Cost(nodes=512, node_list="`nid[1-512]`", rank=0, instructions=21_340_000, seconds=0.0123)
    small = Served(connections=8, files=8, bytes=4002, gloo_bytes=24_632, memory=77_824, is_computed=False)
    large = Served(4096, 4096, 1_860_000, 8_900_000_000, 4_400_000, is_computed=True)
    text = scale_markdown([cost._replace(served=served) for served in (small, large)], gpus=8, repetitions=11)
    assert rows(text)[2][5:] == ["8", "4.0 kB", "25 kB", "78 kB", "–"]
    assert rows(text)[3][5:] == ["≈ 4,096", "≈ 1.9 MB", "≈ 8.9 GB", "≈ 4.4 MB", "`ulimit -n 8192`"]
