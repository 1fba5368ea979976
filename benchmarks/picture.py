"""Draws the ratios of a run against their targets, as SVG: picture.py RESULTS.json PICTURE.svg. Needs matplotlib."""

import io
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.results import Results  # noqa: E402
from benchmarks.rows import ROWS  # noqa: E402
from benchmarks.table import decimals, misses  # noqa: E402

#: Colours that light and dark pages show well, as the picture has no background.
INK, MET, MISSED = "#7d8590", "#3b82f6", "#e5484d"
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
        figure = Figure((6, 1 + 0.25 * len(rows)), layout="constrained")
        axes = figure.add_subplot(xlabel=CAPTION)
        axes.axvline(1, color=INK, linewidth=1, linestyle="dashed")
        axes.grid(color=INK, linewidth=0.6, alpha=0.4)
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
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return "".join(f"{line.rstrip()}\n" for line in svg.getvalue().splitlines())


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(draw(Results.load(Path(sys.argv[1]))), encoding="utf-8")
