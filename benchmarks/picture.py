"""Draws the ratios of a run against their targets, as SVG: picture.py RESULTS.json PICTURE.svg. Needs matplotlib."""

import io
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.results import Results  # noqa: E402
from benchmarks.rows import ROWS  # noqa: E402
from benchmarks.table import decimals, misses  # noqa: E402

#: Colours on a light page, and what replaces them on a dark one.
DARK = {
    "#ffffff": "#0d1117",  # background
    "#1f2328": "#e6edf3",  # text and axis
    "#d1d9e0": "#3d444d",  # grid
    "#0550ae": "#79c0ff",  # ratios
    "#a40e26": "#ff7b72",  # missed targets
}
BACKGROUND, INK, GRID, MET, MISSED = DARK
#: Text as text, and the same file from the same results.
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "benchmarks", "font.family": "sans-serif", "font.size": 9}
STYLE.update(dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK))
#: The panel of small ratios and the panel of ratios near 1: where it ends, and the numbers below it.
SMALL = 0.6
TICKS = (0.001, 0.01, 0.1, 0.5), (0.7, 1, 1.4, 2, 3)
ROW_INCHES, FRAME_INCHES, WIDTH_INCHES = 0.25, 1.7, 6
#: How a ratio is drawn, where the target is met and where it is missed; and a target, a tick across its row.
RATIO = {"marker": "o", "markersize": 6, "color": MET, "linestyle": "none"}
DIAMOND = {"marker": "D", "markersize": 7, "markerfacecolor": BACKGROUND, "markeredgewidth": 2}
MISS = {**DIAMOND, "color": MISSED, "linestyle": "none"}
TARGET = {"marker": "|", "markersize": 13, "markeredgewidth": 2, "color": INK, "linestyle": "none"}


def draw(results):
    """The picture as SVG text: one line per row of the table, with a logarithmic axis."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    rows = [(row, results.ratios[row.name]) for row in ROWS.values() if row.name in results.ratios]
    svg = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure = Figure(
            (WIDTH_INCHES, FRAME_INCHES + ROW_INCHES * len(rows)), facecolor=BACKGROUND, layout="constrained"
        )
        draw_panels(figure, rows)
        figure.supxlabel("A / B: a smaller ratio is better; at 1, both sides cost the same", fontsize=9)
        marks = {"ratio": RATIO, "ratio, target missed": MISS, "target": TARGET}
        marks["range of single pairs"] = {"color": MET, "linewidth": 1.5}
        handles = [Line2D([], [], **mark, label=label) for label, mark in marks.items()]
        figure.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False)
        figure.savefig(svg, format="svg", facecolor=BACKGROUND, metadata={"Date": None, "Creator": None})
    return add_dark_colours(svg.getvalue())


def draw_panels(figure, rows):
    """Draw the small ratios into a narrow panel, and those near 1 into a wide one at its right."""
    values = [value for row, ratio in rows for value in (ratio.low, ratio.high, row.target or ratio.low)]
    limits = (min([*values, SMALL / 2]) * 0.6, SMALL), (SMALL, max([*values, 1]) * 1.2)
    panels = figure.subplots(1, 2, sharey=True, width_ratios=[1, 2])
    for axes, limit, ticks in zip(panels, limits, TICKS):
        axes.set_facecolor(BACKGROUND)
        axes.set_xscale("log")
        axes.set_xticks([tick for tick in ticks if limit[0] <= tick <= limit[1]], minor=False)
        axes.set_xticks([], minor=True)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlim(limit)
        axes.axvline(1, color=INK, linewidth=1, linestyle="dashed")
        axes.grid(axis="both", color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        for height, (row, ratio) in enumerate(rows):
            mark = MISS if misses(row, ratio) else RATIO
            axes.plot([ratio.low, ratio.high], [height, height], color=mark["color"], linewidth=1.5)
            axes.plot([ratio.value], [height], **mark)
            if row.target is not None:
                axes.plot([row.target], [height], **TARGET)
    panels[0].set_yticks(range(len(rows)), [row.name for row, _ in rows])
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    for height, (row, ratio) in enumerate(rows):
        label, colour = (", missed", MISSED) if misses(row, ratio) else ("", MET)
        place = {"xycoords": ("axes fraction", "data"), "va": "center"}
        panels[1].annotate(decimals(ratio.value) + label, (1.01, height), color=colour, **place)


def add_dark_colours(svg):
    """Let readers with a dark colour scheme see the dark colours; matplotlib writes colours into `style` attributes."""
    rules = "".join(
        f'[style*="{use}: {light}"] {{ {use}: {dark} !important }}\n'
        for light, dark in DARK.items()
        for use in ("fill", "stroke")
    )
    style = f"<style>\n@media (prefers-color-scheme: dark) {{\n{rules}}}\n</style>\n"
    start = svg.index("<g ")
    lines = (line.rstrip() for line in (svg[:start] + style + svg[start:]).splitlines())
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(draw(Results.load(Path(sys.argv[1]))), encoding="utf-8")
