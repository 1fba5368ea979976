"""A figure of matplotlib as SVG, in the colours of a light or a dark page. Needs matplotlib."""

import contextlib
import io

#: Colours on a light page, and what replaces them on a dark one.
DARK = {
    "#ffffff": "#0d1117",  # background
    "#1f2328": "#e6edf3",  # text and axis
    "#d1d9e0": "#3d444d",  # grid
    "#0550ae": "#79c0ff",  # ratios
    "#a40e26": "#ff7b72",  # missed targets
}
BACKGROUND, INK, GRID, MET, MISSED = DARK


@contextlib.contextmanager
def svg_figure(width, height):
    """Yield a figure of so many inches, and a text that holds it as SVG after the block."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib.figure import Figure

    # text as text, and the same file from the same results
    style = {"svg.fonttype": "none", "svg.hashsalt": "benchmarks", "font.family": "sans-serif", "font.size": 9}
    ink = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    text, svg = io.StringIO(), io.StringIO()
    with matplotlib.rc_context({**style, **dict.fromkeys(ink, INK)}):
        figure = Figure((width, height), facecolor=BACKGROUND, layout="constrained")
        yield figure, text
        figure.savefig(svg, format="svg", facecolor=BACKGROUND, metadata={"Date": None, "Creator": None})
    text.write(add_dark_colours(svg.getvalue()))


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
