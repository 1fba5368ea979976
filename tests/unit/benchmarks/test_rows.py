"""What is compared: the rows in words, how each is measured, and the page that shows the last results."""

import re

import pytest

from benchmarks import __main__ as command
from benchmarks.__main__ import PICTURE
from benchmarks.installs import PARTS
from benchmarks.results import RESULTS, Results
from benchmarks.rows import EXPERIMENTS, ROWS
from benchmarks.session import PROGRAMS, TREE
from benchmarks.table import PAGE, UNITS, update
from testbed import layout as testbed_layout
from testbed.recipes import LOCK, VENV, module

TEXT = PAGE.read_text(encoding="utf-8")


def test_every_row_is_measured_once():
    assert sorted(name for each in EXPERIMENTS for name in each.names) == sorted(ROWS)
    assert {row.unit for row in ROWS.values()} == set(UNITS)


def test_medians_of_seconds_are_of_at_least_7_pairs():
    timed = [each for each in EXPERIMENTS if any(ROWS[name].unit == "seconds" for name in each.names)]
    assert [each.names for each in timed if each.rounds < 7] == []


def test_everything_that_is_measured_is_in_the_tree():
    for recipe in {recipe for each in EXPERIMENTS for recipe in each.recipes}:
        assert list(TREE.glob(f"easyconfigs/*/*/{recipe}.eb"))
    assert LOCK.with_suffix(".def").is_file()
    assert {"easyblocks", "easyconfigs", "libexec", "modulefiles", "runscripts", "payload"} <= PARTS
    assert all((TREE / part).is_dir() for part in PARTS)


def test_every_program_is_named_by_the_code_or_by_another_program():
    programs = [path for path in PROGRAMS.iterdir() if path.is_file()]
    texts = {file: file.read_text() for file in [*PROGRAMS.parent.glob("*.py"), *programs]}
    for program in programs:
        assert any(program.name in text for file, text in texts.items() if file != program), program.name


def test_the_page_shows_the_last_results_and_has_every_row_or_the_reason_why_not():
    """After a change of a row's words or target: `benchmarks/run --redraw`."""
    assert update(TEXT, Results.load(RESULTS)) == TEXT
    rows = re.findall(r"^\| `([\w-]+)` \|", TEXT, re.MULTILINE)
    reasons = re.findall(r"^- `([\w-]+)` (?:was not measured|failed): ", TEXT, re.MULTILINE)
    assert sorted(rows + reasons) == sorted(ROWS)


def test_the_page_shows_the_picture_of_the_last_results():
    pytest.importorskip("matplotlib")
    from benchmarks.picture import draw

    assert PICTURE.read_text(encoding="utf-8") == draw(Results.load(RESULTS))
    assert f"]({PICTURE.relative_to(PAGE.parent)})" in TEXT


def test_names_of_rows_in_the_pages_text_are_rows():
    explanations = TEXT.split("## What the ratios are made of")[1].split("\n## ")[0]
    groups = re.findall(r"^- \*\*[^*]+\*\* \((.*?)\)", explanations, re.MULTILINE)
    named = {name for names in groups for name in re.findall(r"`([\w-]+)`", names)}
    assert named
    assert named <= set(ROWS)


@pytest.mark.parametrize("error", ["echo no font >&2; exit 1", "kill -9 $$"])
def test_a_picture_that_cannot_be_drawn_leaves_the_old_page(tmp_path, monkeypatch, error):
    python = tmp_path / "easybuild" / "software" / module(VENV) / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{error}\n")
    python.chmod(0o755)
    copy = tmp_path / "benchmarks.md"
    copy.write_text(TEXT.replace(" | ", " | old "))
    monkeypatch.setattr(command.table, "PAGE", copy)
    monkeypatch.setattr(command.sys, "argv", ["benchmarks/run", "--redraw"])
    options = command.parse_arguments()
    with pytest.raises(testbed_layout.TestbedError, match="cannot draw the picture: (no font|status -9)"):
        command.report(testbed_layout.Layout(tmp_path), options, Results.load(RESULTS))
    assert copy.read_text() == TEXT.replace(" | ", " | old ")
