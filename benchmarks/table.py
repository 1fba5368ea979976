"""Formats results as Markdown, and writes them into docs/benchmarks.md between comments that mark where they go."""

import re

from benchmarks.rows import ROWS
from benchmarks.session import TREE

PAGE = TREE / "docs" / "benchmarks.md"
SECTION = "<!-- results: written by benchmarks/run --page -->\n{}<!-- end of results -->\n"
HEADER = (
    "| row | A against B | A | B | A / B | single pairs | target | elsewhere |\n|---|---|---:|---:|---:|---:|---:|---|"
)
LEGEND = (
    "A and B are medians, measured in turn: A B A B ... A / B is the ratio of the medians, `single pairs` its smallest "
    "and largest value in one pair and their number, `elsewhere` the ratio of other software. `benchmarks/rows.ini` "
    "describes both sides of each row."
)


def update(page, results):
    """The text of the page with the table of `results`. Raises ValueError if the page lacks a place for it."""
    page, count = re.subn(SECTION.format("(?s:.*)"), lambda _: SECTION.format(results_markdown(results)), page)
    if count != 1:
        raise ValueError(f"{PAGE.name} has {count} places for the results, not 1")
    return page


def results_markdown(results):
    """The table of Results, with what a reader needs to understand it."""
    measured = [(row, results.ratios[row.name]) for row in ROWS.values() if row.name in results.ratios]
    lines = [HEADER, *(_row(row, ratio) for row, ratio in measured), "", LEGEND, ""]
    for run in dict.fromkeys(ratio.run for _, ratio in measured):
        names = ", ".join(f"`{row.name}`" for row, ratio in measured if ratio.run == run)
        lines.append(f"- {names}: {run}")
    lines += [f"- `{name}` was not measured: {reason}." for name, reason in results.left_out.items()]
    lines += [f"- `{name}` failed: {reason}" for name, reason in results.failures.items()]
    return "\n".join(lines) + "\n"


def misses(row, ratio):
    """Whether the ratio, as it is printed, is larger than its target."""
    return row.target is not None and float(decimals(ratio.value)) > row.target


def decimals(ratio):
    """A ratio with two decimals, or with two digits if it is small."""
    if ratio < 0.1:
        return f"{ratio:#.2g}"
    return f"{ratio:.2f}"


def seconds(value):
    """Seconds as text, with three digits or in whole milliseconds."""
    if round(value, 3) < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.{max(0, 3 - len(str(int(value))))}f} s"


#: How each unit of a row is written.
UNITS = {
    "seconds": seconds,
    "instructions": lambda value: f"{value / 1e6:.1f} million",
    "calls": "{:,.0f} calls".format,
}


def _row(row, ratio):
    """The row of the table."""
    cells = (
        f"`{row.name}`",
        row.title,
        UNITS[row.unit](ratio.a),
        UNITS[row.unit](ratio.b),
        f"**{decimals(ratio.value)}**",
        _range(ratio),
        _target(row, ratio),
        row.reference or "–",
    )
    return f"| {' | '.join(cells)} |"


def _range(ratio):
    """The smallest and the largest ratio of a single pair."""
    if ratio.pairs == 1:
        return "–"
    return f"{decimals(ratio.low)} to {decimals(ratio.high)} of {ratio.pairs}"


def _target(row, ratio):
    """The target, and whether it is missed."""
    if row.target is None:
        return "–"
    if misses(row, ratio):
        return f"≤ {row.target}, missed"
    return f"≤ {row.target}"
