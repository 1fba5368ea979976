"""The results as Markdown."""

import re

import pytest

from benchmarks import table
from benchmarks.results import Ratio, Results
from benchmarks.rows import Row
from benchmarks.table import PAGE, decimals, quantity, results_markdown, update

TEA = Row("tea", "tea against water", a="a cup", b="a glass", target=1.2, reference="coffee: 3")
RATIO = Ratio(a=0.3, b=0.2, low=1.1, high=1.9, pairs=7, run="Measured on a laptop.")


@pytest.fixture
def markdown(monkeypatch):
    """A function that returns the text of a table, by default with one row, and the cells of its lines."""

    def render(ratios=RATIO, *, left_out=(), failures=(), **words):
        rows = {name: TEA._replace(name=name, **words) for name in ("tea", "milk", "juice")}
        monkeypatch.setattr(table, "ROWS", rows)
        ratios = ratios if isinstance(ratios, dict) else {"tea": ratios}
        text = results_markdown(Results(ratios, dict(left_out), dict(failures)))
        return text, [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]

    return render


def test_a_row_has_both_medians_their_ratio_and_its_spread(markdown):
    text, (header, _, row) = markdown()
    assert header == ["row", "A against B", "A", "B", "A / B", "single pairs", "target", "elsewhere"]
    assert row[:4] == ["`tea`", "tea against water", "300 ms", "200 ms"]
    assert row[4:] == ["**1.50**", "1.10 to 1.90", "≤ 1.2, missed", "coffee: 3"]
    assert "- `tea`, 7 pairs. A: a cup. B: a glass.\n" in text


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
def test_a_missed_target_is_marked(markdown, a, target, ratio, cell):
    row = markdown(Ratio(a=a, b=1.0, low=a, high=a, pairs=7), target=target)[1][-1]
    assert (row[4], row[6]) == (ratio, cell)


def test_one_pair_has_no_spread_and_both_sides_are_in_the_unit_of_the_row(markdown):
    row = markdown(Ratio(a=3e6, b=2e6, low=1.5, high=1.5, pairs=1), unit="instructions")[1][-1]
    assert row[2:6] == ["3.0 million", "2.0 million", "**1.50**", "–"]


def test_rows_keep_their_order_and_have_as_many_cells_as_the_header(markdown):
    header, _, *body = markdown(dict.fromkeys(("juice", "milk", "tea"), RATIO))[1]
    assert [row[0] for row in body] == ["`tea`", "`milk`", "`juice`"]
    assert {len(row) for row in body} == {len(header)}


def test_a_run_is_named_and_several_runs_with_their_rows(markdown):
    assert "\n- Measured on a laptop.\n" in markdown()[0]
    text = markdown({"tea": RATIO, "milk": RATIO, "juice": RATIO._replace(run="Measured at two.")})[0]
    assert "\n- `tea`, `milk`: Measured on a laptop.\n- `juice`: Measured at two.\n" in text


def test_what_was_not_measured_or_failed_is_listed_with_the_reason(markdown):
    text = markdown(left_out={"milk": "no cow"}, failures={"juice": "`press` failed with status 1."})[0]
    assert "- `milk` was not measured: no cow.\n" in text
    assert "- `juice` failed: `press` failed with status 1.\n" in text


def test_results_replace_the_table_and_leave_the_rest_of_the_page():
    page = PAGE.read_text(encoding="utf-8")
    text = update(page, Results({"import": RATIO._replace(run=r"Measured on \1.")}, {}, {}))
    assert re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE) == ["import"]
    assert r"Measured on \1." in text
    outside = re.compile(r"<!-- results: written by .*?<!-- end of", re.DOTALL)
    assert outside.sub("", text) == outside.sub("", page)
    with pytest.raises(ValueError, match="0 places for the results"):
        update("# Benchmarks\n", Results({}, {}, {}))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        *((0.0284, "seconds", "28 ms"), (0.9994, "seconds", "999 ms"), (0.9996, "seconds", "1.00 s")),
        *((1.404, "seconds", "1.40 s"), (46.93, "seconds", "46.9 s"), (123.4, "seconds", "123 s")),
        *(
            (39262131, "instructions", "39.3 million"),
            (351465472, "bytes", "351.5 MB"),
            (18530.4, "calls", "18,530 calls"),
        ),
        # ratios have two digits, also if the second is 0
        *((1.234, None, "1.23"), (0.1, None, "0.10"), (0.0102, None, "0.010"), (0.00214, None, "0.0021")),
    ],
)
def test_a_quantity_has_its_unit_and_digits(value, unit, text):
    assert (quantity(value, unit) if unit else decimals(value)) == text
