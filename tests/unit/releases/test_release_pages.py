"""The lines of a release in the pages, and that its files are written all or not at all."""

import os
from pathlib import Path

import pytest

from releases.pages import with_entry, with_rows
from releases.write import write_all
from testbed.layout import TestbedError as Error  # pytest would take it for a class of tests

TABLE = """\
| recipe | system | stand-in | real | launch line |
|---|---|---|---|---|
| `1.0-cpu-singularity`, `1.0-cpu-venv` | any machine | nothing | everything | `srun` |
| `1.0-cuda-1.2-venv` | NVIDIA | wheels | the rest | the same |
"""


def test_a_new_recipe_has_a_row_that_claims_no_test():
    rows = with_rows(TABLE, {"1.0-cpu-venv": "2.0-cpu-venv", "1.0-cuda-1.2-venv": "2.0-cuda-1.3-venv"}).splitlines()
    assert rows[3] == "| `2.0-cpu-venv` | any machine | not installed yet | style, dry run | `srun` |"
    expected = "| `2.0-cuda-1.3-venv` | NVIDIA | not installed yet | style, dry run | as for `1.0-cuda-1.2-venv` |"
    assert rows[5] == expected
    assert [row for row in rows if row not in (rows[3], rows[5])] == TABLE.splitlines()


def test_a_recipe_without_a_row_is_an_error():
    with pytest.raises(Error, match=r"docs/systems\.md: no row of 1\.0-rocm\. Add one\."):
        with_rows(TABLE, {"1.0-rocm": "2.0-rocm"})


def test_the_change_log_has_an_entry_at_the_end_of_its_first_list():
    page = "# Change log\n\n## 1 (unreleased)\n\n- one\n  more\n- two\n\nFixes:\n\n- three\n"
    assert with_entry(page, "new") == page.replace("- two\n", "- two\n- new\n")


@pytest.mark.parametrize("obstacle", ["exists", "directory"])
def test_a_release_is_written_all_or_not_at_all(tmp_path, obstacle):
    (tmp_path / "page.md").write_text("old\n")
    new = {Path("a.eb"): "a", Path("b.eb"): "b"}
    edited = {"page.md": "new\n"}
    if obstacle == "exists":
        (tmp_path / "b.eb").write_text("mine")
    else:
        new = {Path("a.eb"): "a"}
        edited["missing/page.md"] = "new\n"
        (tmp_path / "missing").mkdir()
        (tmp_path / "missing" / "page.md").write_text("old\n")
        (tmp_path / "missing" / f".page.md.{os.getpid()}").mkdir()
    before = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(OSError, match=r"b\.eb|page\.md"):
        write_all(tmp_path, new, edited)
    assert {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == before
