"""Draws the ratios of a run against their targets, as SVG: picture.py RESULTS.json PICTURE.svg. Needs matplotlib."""

import io
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.results import Results  # noqa: E402
from benchmarks.rows import ROWS  # noqa: E402
from benchmarks.table import decimals, misses  # noqa: E402

#: Colours on a light page, and what replaces them on a dark one.
DARK = {"#ffffff": "#0d1117", "#1f2328": "#e6edf3", "#d1d9e0": "#3d444d", "#0550ae": "#79c0ff", "#a40e26": "#ff7b72"}
BACKGROUND, INK, GRID, MET, MISSED = DARK
#: Text as text, and the same file from the same results.
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "benchmarks", "font.family": "sans-serif", "font.size": 9}
STYLE.update(dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK))
CAPTION = """A / B: a smaller ratio is better; at 1, both sides cost the same
dot: ratio, red if its target is missed; line: range of single pairs; tick: target"""


def draw(results):
    """The picture as SVG text: one line per row of the table."""
    import matplotlib
    from matplotlib.figure import Figure

    rows = [(row, results.ratios[row.name]) for row in ROWS.values() if row.name in results.ratios]
    heights = range(len(rows))
    colours = [MISSED if misses(row, ratio) else MET for row, ratio in rows]
    targets = [(row.target, height) for height, (row, _) in zip(heights, rows) if row.target is not None]
    svg = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure = Figure((6, 1 + 0.25 * len(rows)), layout="constrained", facecolor=BACKGROUND)
        axes = figure.add_subplot(xlabel=CAPTION, facecolor=BACKGROUND, axisbelow=True)
        axes.axvline(1, color=INK, linewidth=1, linestyle="dashed")
        axes.grid(color=GRID, linewidth=0.6)
        axes.hlines(heights, *zip(*((ratio.low, ratio.high) for _, ratio in rows)), colors=colours)
        axes.scatter([ratio.value for _, ratio in rows], heights, c=colours, zorder=3)
        axes.plot(*zip(*targets), "|", color=INK, markersize=13, markeredgewidth=2)
        for height, colour, (row, ratio) in zip(heights, colours, rows):
            text = decimals(ratio.value) + (", missed" if misses(row, ratio) else "")
            axes.annotate(text, (1.01, height), xycoords=("axes fraction", "data"), va="center", color=colour)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.set_yticks(heights, [row.name for row, _ in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(left=0)
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    # matplotlib writes colours into `style` attributes
    rule = '[style*="{0}: {1}"] {{ {0}: {2} !important }}\n'.format
    rules = "".join(rule(use, *colours) for colours in DARK.items() for use in ("fill", "stroke"))
    style = f"<style>\n@media (prefers-color-scheme: dark) {{\n{rules}}}\n</style>\n<g "
    return "".join(f"{line.rstrip()}\n" for line in svg.getvalue().replace("<g ", style, 1).splitlines())


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(draw(Results.load(Path(sys.argv[1]))), encoding="utf-8")
