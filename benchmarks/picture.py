"""Draws the ratios of a run against their targets: picture.py RESULTS.json PICTURE.svg. Needs matplotlib."""

import io
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.experiments import COMPARISONS  # noqa: E402
from benchmarks.results import Results  # noqa: E402
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
ROW_INCHES, FRAME_INCHES, WIDTH_INCHES = 0.27, 1.5, 9


def main(source, target):
    """Draw the results of the file `source` to the file `target`."""
    Path(target).write_text(draw(Results.load(Path(source))), encoding="utf-8")


def draw(results):
    """The picture as SVG text: one line per row of the table, with a logarithmic axis."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib.figure import Figure

    rows = [(each, results.ratios[each.name]) for each in COMPARISONS if each.name in results.ratios]
    # text as text, and the same file from the same results
    style = {"svg.fonttype": "none", "svg.hashsalt": "benchmarks", "font.family": "sans-serif", "font.size": 9}
    ink = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    size = WIDTH_INCHES, FRAME_INCHES + ROW_INCHES * len(rows)
    with matplotlib.rc_context({**style, **dict.fromkeys(ink, INK)}):
        figure = Figure(size, facecolor=BACKGROUND, layout="constrained")
        axes = figure.add_subplot(facecolor=BACKGROUND)
        for height, (comparison, ratio) in enumerate(rows):
            draw_row(axes, height, comparison, ratio)
        finish_axes(axes, rows)
        axes.legend(handles=legend_handles(), loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, frameon=False)
        if results.notice:
            figure.suptitle(results.notice)
        text = io.StringIO()
        figure.savefig(text, format="svg", facecolor=BACKGROUND, metadata={"Date": None, "Creator": None})
    return add_dark_colours(text.getvalue())


def draw_row(axes, height, comparison, ratio):
    """One comparison: the range of single pairs, the ratio, its target, and its number on the right."""
    is_missed = misses(comparison, ratio)
    colour = MISSED if is_missed else MET
    axes.plot([ratio.low, ratio.high], [height, height], color=colour, linewidth=1.5)
    axes.plot([ratio.value], [height], **marker(is_missed))
    if comparison.target is not None:
        axes.plot([comparison.target], [height], **TARGET)
    label = f"{decimals(ratio.value)}, missed" if is_missed else decimals(ratio.value)
    axes.annotate(label, (1.01, height), xycoords=("axes fraction", "data"), va="center", color=colour)


#: A target is a tick across its row.
TARGET = {"marker": "|", "markersize": 13, "markeredgewidth": 2, "color": INK, "linestyle": "none"}


def marker(is_missed):
    """How a ratio is drawn: a dot, or an open diamond where the target is missed."""
    if is_missed:
        shape = {"marker": "D", "markersize": 7, "markerfacecolor": BACKGROUND, "markeredgewidth": 2}
        return {**shape, "color": MISSED, "linestyle": "none"}
    return {"marker": "o", "markersize": 6, "color": MET, "linestyle": "none"}


def finish_axes(axes, rows):
    """Names on the left, numbers below, and a line where both sides are equal."""
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("A / B: a smaller ratio is better; at 1, both sides cost the same")
    axes.set_yticks(range(len(rows)), [comparison.name for comparison, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.axvline(1, color=INK, linewidth=1, linestyle="dashed")
    axes.grid(axis="both", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)


def legend_handles():
    """The marks of the picture, with their meaning."""
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], **marker(False), label="ratio"),
        Line2D([], [], **marker(True), label="ratio, target missed"),
        Line2D([], [], **TARGET, label="target"),
        Line2D([], [], color=MET, linewidth=1.5, label="range of single pairs"),
    ]


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
    main(*sys.argv[1:])
