"""Writes results into docs/benchmarks.md, between comments that mark where they go."""

import re

from benchmarks import scale
from benchmarks.comparison import TREE
from benchmarks.experiments import COMPARISONS
from benchmarks.table import results_markdown, scale_markdown, waits_markdown

PAGE = TREE / "docs" / "benchmarks.md"
PICTURE = TREE / "docs" / "pictures" / "benchmarks.svg"
SECTION = "<!-- {name}: written by benchmarks/run --page -->\n{content}<!-- end of {name} -->\n"


def write_page(results):
    """Replace the tables of the page by those of `results`."""
    PAGE.write_text(update(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")


def update(page, results):
    """The text of the page with the tables of `results`. Raises ValueError if the page lacks a place for them."""
    for name, content in tables(results).items():
        section = SECTION.format(name=name, content=content)
        pattern = re.escape(SECTION.format(name=name, content="CONTENT")).replace("CONTENT", "(?s:.*)")
        page, count = re.subn(pattern, lambda _, section=section: section, page)
        if count != 1:
            raise ValueError(f"{PAGE.name} has {count} sections for {name}, not 1")
    return page


def tables(results):
    """The tables of the page, by the names of their sections."""
    return {
        "results": results_markdown(results, COMPARISONS),
        "large worlds": scale_markdown(results.costs, gpus=scale.GPUS, repetitions=scale.REPETITIONS),
        "slow file system": waits_markdown(results.ratios),
    }
