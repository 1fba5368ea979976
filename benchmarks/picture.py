"""Draws the ratios of a run against their targets, as SVG: picture.py RESULTS.json PICTURE.svg. Needs matplotlib."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.experiments import COMPARISONS  # noqa: E402
from benchmarks.results import Results  # noqa: E402
from benchmarks.svg import BACKGROUND, GRID, INK, MET, MISSED, svg_figure  # noqa: E402
from benchmarks.table import decimals, misses  # noqa: E402

#: Where the panel of small ratios ends.
SMALL = 0.6
TICKS = (0.001, 0.01, 0.1, 0.5, 0.7, 1, 1.4, 2, 3, 5, 10)
ROW_INCHES, FRAME_INCHES, WIDTH_INCHES = 0.27, 1.5, 9


def main(source, target):
    """Draw the results of the file `source` to the file `target`."""
    Path(target).write_text(draw(Results.load(Path(source))), encoding="utf-8")


def draw(results):
    """The picture as SVG text: one line per row of the table, with a logarithmic axis."""
    rows = [(each, results.ratios[each.name]) for each in COMPARISONS if each.name in results.ratios]
    with svg_figure(WIDTH_INCHES, FRAME_INCHES + ROW_INCHES * len(rows)) as (figure, text):
        panels = make_panels(figure, rows)
        for axes in panels:
            for height, (comparison, ratio) in enumerate(rows):
                draw_row(axes, height, comparison, ratio)
        for height, (comparison, ratio) in enumerate(rows):
            write_number(panels[-1], height, comparison, ratio)
        figure.supxlabel("A / B: a smaller ratio is better; at 1, both sides cost the same", fontsize=9)
        title = results.notice.replace("`", "") or None
        figure.legend(handles=legend_handles(), title=title, loc="outside upper center", ncols=4, frameon=False)
    return text.getvalue()


def make_panels(figure, rows):
    """One logarithmic axis for ratios near 1, and left of it a narrow one for small ratios if there are any."""
    lows = [min(ratio.low, comparison.target or ratio.low) for comparison, ratio in rows]
    highs = [max(ratio.high, comparison.target or ratio.high) for comparison, ratio in rows]
    smallest, largest = min([*lows, SMALL]), max([*highs, 1])
    limits = [(SMALL, largest * 1.2)] if smallest == SMALL else [(smallest * 0.6, SMALL), (SMALL, largest * 1.2)]
    widths = [1, 2][-len(limits) :]
    panels = figure.subplots(1, len(limits), sharey=True, squeeze=False, width_ratios=widths)[0]
    for axes, limit in zip(panels, limits):
        format_axes(axes, limit)
    panels[0].set_yticks(range(len(rows)), [comparison.name for comparison, _ in rows])
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    return panels


def format_axes(axes, limits):
    """A logarithmic axis with plain numbers, and a line where both sides are equal."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.set_facecolor(BACKGROUND)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in TICKS if limits[0] <= tick <= limits[1]]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlim(limits)
    axes.axvline(1, color=INK, linewidth=1, linestyle="dashed")
    axes.grid(axis="both", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)


def draw_row(axes, height, comparison, ratio):
    """One comparison: the range of single pairs, the ratio, and its target."""
    is_missed = misses(comparison, ratio)
    colour = MISSED if is_missed else MET
    axes.plot([ratio.low, ratio.high], [height, height], color=colour, linewidth=1.5)
    axes.plot([ratio.value], [height], **marker(is_missed))
    if comparison.target is not None:
        axes.plot([comparison.target], [height], **TARGET)


def write_number(axes, height, comparison, ratio):
    """The ratio as a number, right of its row."""
    is_missed = misses(comparison, ratio)
    label = f"{decimals(ratio.value)}, missed" if is_missed else decimals(ratio.value)
    colour = MISSED if is_missed else MET
    axes.annotate(label, (1.01, height), xycoords=("axes fraction", "data"), va="center", color=colour)


#: A target is a tick across its row.
TARGET = {"marker": "|", "markersize": 13, "markeredgewidth": 2, "color": INK, "linestyle": "none"}


def marker(is_missed):
    """How a ratio is drawn: a dot, or an open diamond where the target is missed."""
    if is_missed:
        shape = {"marker": "D", "markersize": 7, "markerfacecolor": BACKGROUND, "markeredgewidth": 2}
        return {**shape, "color": MISSED, "linestyle": "none"}
    return {"marker": "o", "markersize": 6, "color": MET, "linestyle": "none"}


def legend_handles():
    """The marks of the picture, with their meaning."""
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], **marker(False), label="ratio"),
        Line2D([], [], **marker(True), label="ratio, target missed"),
        Line2D([], [], **TARGET, label="target"),
        Line2D([], [], color=MET, linewidth=1.5, label="range of single pairs"),
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
