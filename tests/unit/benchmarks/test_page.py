"""docs/benchmarks.md: its tables and picture are those of results.json, and its rows are those of the code."""

import re
from argparse import Namespace

import pytest

from benchmarks import page
from benchmarks.__main__ import report
from benchmarks.comparison import TREE
from benchmarks.experiments import COMPARISONS
from benchmarks.page import PAGE, PICTURE, update
from benchmarks.picture import draw
from benchmarks.ratio import Ratio
from benchmarks.results import RESULTS, Results
from benchmarks.scale import Cost
from testbed import layout as testbed_layout
from testbed.recipes import VENV, module

TEXT = PAGE.read_text(encoding="utf-8")
NAMES = [each.name for each in COMPARISONS]


def test_every_comparison_has_exactly_one_row_or_reason_and_every_row_is_a_comparison():
    rows = re.findall(r"^\| `([\w-]+)` \|", TEXT, re.MULTILINE)
    reasons = re.findall(r"^- `([\w-]+)` (?:was not measured|failed): ", TEXT, re.MULTILINE)
    assert len(set(rows + reasons)) == len(rows + reasons)
    assert set(rows + reasons) == set(NAMES)


def test_the_tables_are_those_of_the_last_results():
    """After a change of a row's words or target: `benchmarks/run --redraw`."""
    assert update(TEXT, Results.load(RESULTS)) == TEXT


def test_the_picture_is_that_of_the_last_results():
    pytest.importorskip("matplotlib")
    assert PICTURE.read_text(encoding="utf-8") == draw(Results.load(RESULTS))
    assert f"]({PICTURE.relative_to(PAGE.parent)})" in TEXT


def test_names_of_rows_in_the_pages_text_are_comparisons():
    explanations = TEXT.split("## What the ratios are made of")[1].split("\n## ")[0]
    named = {
        name
        for names in re.findall(r"^- \*\*[^*]+\*\* \((.*?)\)", explanations, re.MULTILINE)
        for name in re.findall(r"`([\w-]+)`", names)
    }
    assert named
    assert named <= set(NAMES)


def test_results_replace_the_tables_and_leave_the_rest_of_the_page():
    results = Results(
        {NAMES[0]: Ratio(1.0, 2.0, 0.4, 0.6, 7)}, {}, {}, [Cost(1, "`nid1`", 0, 1_000_000, 0.001)], r"Measured on \1."
    )
    text = update(TEXT, results)
    assert re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE) == [NAMES[0]]
    assert r"Measured on \1." in text
    assert "| 1 | `nid1` | 0 | 1.0 million | 1 ms |" in text
    outside = re.compile(r"<!-- [\w ]+: written by .*?<!-- end of", re.DOTALL)
    assert outside.sub("", text) == outside.sub("", TEXT)


def test_a_page_without_a_place_for_a_table_is_an_error():
    with pytest.raises(ValueError, match="0 sections for results"):
        update("# Benchmarks\n", Results.load(RESULTS))


@pytest.mark.parametrize("error", ["echo no font >&2; exit 1", "kill -9 $$"])
def test_a_picture_that_cannot_be_drawn_leaves_the_old_page(tmp_path, monkeypatch, error):
    layout = testbed_layout.Layout(tmp_path)
    python = layout.easybuild / "software" / module(VENV) / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{error}\n")
    python.chmod(0o755)
    copy = tmp_path / "benchmarks.md"
    copy.write_text(TEXT.replace(" | ", " | old "))
    monkeypatch.setattr(page, "PAGE", copy)
    options = Namespace(page=False, redraw=True, scale=False, output=None, picture=None)
    with pytest.raises(testbed_layout.TestbedError, match="cannot draw the picture: (no font|status -9)"):
        report(layout, options, Results.load(RESULTS))
    assert copy.read_text() == TEXT.replace(" | ", " | old ")


def test_results_are_the_same_after_saving_and_loading(tmp_path):
    results = Results(
        {"tea": Ratio(1.0, 2.0, 0.5, 0.5, 1)}, {"milk": "no cow"}, {}, [Cost(1, "`n`", 0, 5, 0.1)], "Run."
    )
    results.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json") == results


def test_the_page_and_its_parts_are_in_the_tree():
    assert page.SECTION.format(name="results", content="").splitlines()[0] in TEXT
    assert RESULTS.parent == TREE / "benchmarks"
