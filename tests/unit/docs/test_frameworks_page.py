"""docs/frameworks.md: a test runs its commands, and its Python is that of the programs that are trained."""

import re
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[3]
PAGE = (TREE / "docs" / "frameworks.md").read_text()
TESTS = TREE / "tests" / "integration" / "user_software"
PROGRAMS = "\n".join(path.read_text() for path in sorted(TESTS.glob("frameworks/*.py")))
SOURCES = "\n".join(path.read_text() for path in sorted(TESTS.glob("*framework*.py")))
#: A block of indented lines, and the end of the line before it, up to the colon.
BLOCK = re.compile(r"^([^\n|]+):(?:[^\n]*)\n\n((?:    [^\n]*\n)+)", re.MULTILINE)

#: Starts of lines that name the user's own files and functions, or print.
NAMES_OF_THE_TEST = ("import ", "job = ", "print(")


def blocks():
    """Yield (section, label, lines) of every block below a heading."""
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        heading = section.partition("\n")[0]
        for label, lines in BLOCK.findall(section):
            yield heading, label, [line.strip() for line in lines.splitlines()]


BLOCKS = list(blocks())


def without_layout(code):
    """Code without spaces and line breaks, and the comma that a formatter adds at the end of a long call."""
    return re.sub(r"\s", "", code).replace(",)", ")")


@pytest.mark.parametrize(("heading", "label", "lines"), BLOCKS, ids=[" ".join(block[:2]) for block in BLOCKS])
def test_a_test_reads_each_block_from_the_page_or_trains_a_program_with_its_lines(heading, label, lines):
    assert f'"{heading}"' in SOURCES
    if label.startswith("In the script"):
        everything = without_layout(PROGRAMS + SOURCES)
        calls = [line.partition("  #")[0].rstrip(")") for line in lines if not line.startswith(NAMES_OF_THE_TEST)]
        assert all(without_layout(call) in everything for call in calls)
    else:
        assert f'"{label.partition(",")[0]}"' in SOURCES or f'"{label}"' in SOURCES
