"""Draws how long worlds take to import torch from a slow file system; picture.py calls it."""

from benchmarks.svg import BACKGROUND, GRID, INK, LINES, svg_figure

#: What OLCF measured on 8 nodes of Frontier, a script that imports torch
#: (https://docs.olcf.ornl.gov/software/python/sbcast_conda.html).
OLCF = (("NFS", 64, 236), ("Lustre", 64, 51), ("local disk", 64, 2))
MARKERS = "osD^vP*Xp"
WIDTH_INCHES, HEIGHT_INCHES = 9, 5


def draw_starts(starts):
    """The picture as SVG text: a line for each way, filled where ranks ran, open where they were replayed."""
    ways = list(dict.fromkeys(start.way for start in starts))
    with svg_figure(WIDTH_INCHES, HEIGHT_INCHES) as (figure, text):
        axes = figure.subplots()
        format_axes(axes, sorted({start.ranks for start in starts}))
        for way, mark, colour in zip(ways, MARKERS, LINES):
            draw_way(axes, [start for start in starts if start.way == way], mark, colour)
        for place, ranks, seconds in OLCF:
            axes.plot([ranks], [seconds], marker="x", color=INK, linestyle="none")
            axes.annotate(f"{place} (OLCF)", (ranks, seconds), xytext=(6, 3), textcoords="offset points")
        figure.legend(loc="outside upper center", ncols=4, frameon=False)
    return text.getvalue()


def draw_way(axes, starts, mark, colour):
    """The worlds of one way."""
    measured = [start for start in starts if not start.replayed]
    largest = max(start.ranks for start in measured)
    replayed = [start for start in starts if start.replayed and start.ranks > largest]
    line = {"marker": mark, "color": colour, "linewidth": 1.2}
    axes.plot(*points(measured), **line, label=starts[0].way)
    axes.plot(*points(replayed), **line, markerfacecolor=BACKGROUND)


def points(starts):
    """The ranks and the seconds of some Starts."""
    return [start.ranks for start in starts], [start.seconds for start in starts]


def format_axes(axes, ranks):
    """Logarithmic axes with plain numbers."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.set_facecolor(BACKGROUND)
    for axis, ticks in ((axes.xaxis, ranks), (axes.yaxis, (1, 3, 10, 30, 100, 300, 1000, 3000))):
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("ranks: filled marks ran, all on one core; open marks are replayed, with a core for each rank")
    axes.set_ylabel("seconds until the last rank has imported torch")
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
