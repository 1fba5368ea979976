"""Shapes and words of a picture as SVG, legible on light and on dark pages."""

from html import escape

from benchmarks.svg import BACKGROUND, DARK, INK, MET

#: The fills of areas that words lie on, and what replaces them on a dark page.
DARK_FILLS = {
    "#cfe3ff": "#1f4b7d",
    "#ffd9b0": "#7a4510",
    "#cdeccf": "#1f5c2c",
    "#f6c9d8": "#7a2c4c",
    "#e4d6fb": "#50367f",
    "#fff0a8": "#5f5410",
    "#bfeaf0": "#14596a",
    "#e3d8cc": "#5a4a3a",
    "#eceff2": "#24292f",
}
*FILLS, PLAIN = DARK_FILLS
DARK_COLOURS = {**{colour: DARK[colour] for colour in (BACKGROUND, INK, MET)}, **DARK_FILLS}
SANS, MONO = "system-ui, sans-serif", "ui-monospace, monospace"
#: The width of a letter, in parts of its size: of wide fonts, so that other fonts take less.
SANS_WIDTH, MONO_WIDTH = 0.54, 0.62


class Canvas:
    """A picture of `width` times `height` pixels. Coordinates are in pixels, from the upper left corner."""

    def __init__(self, width, height, title):
        self.size = width, height
        self.title = title
        self.parts = []
        self.rectangle(0, 0, width, height, fill=BACKGROUND, radius=0)

    def rectangle(self, x, y, width, height, *, fill=PLAIN, radius=4):
        """A rectangle with round corners."""
        shape = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}"'
        self.parts.append(f'<rect {shape} style="fill: {fill};"/>')

    def text(self, x, y, words, *, size=13, mono=False, bold=False, colour=INK, anchor="start", end=None):
        """Words on a baseline that begins at a point; it is the middle or the end with this `anchor`.

        Raises ValueError for words that would not end left of `end`, by default the right border.
        """
        if anchor == "start" and x + len(words) * size * (MONO_WIDTH if mono else SANS_WIDTH) > (end or self.size[0]):
            raise ValueError(f"too long for the picture: {words}")
        family, weight = MONO if mono else SANS, " font-weight: bold;" if bold else ""
        style = f"fill: {colour}; font-family: {family}; font-size: {size}px;{weight}"
        place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}" xml:space="preserve"'
        self.parts.append(f'<text {place} style="{style}">{escape(words)}</text>')

    def arrow(self, x1, y1, x2, y2):
        """A line down or to the right, with a head at its second point."""
        self.parts.append(f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" style="stroke: {INK};"/>')
        head = ((x2 - 4, y2 - 6), (x2 + 4, y2 - 6)) if x1 == x2 else ((x2 - 6, y2 - 4), (x2 - 6, y2 + 4))
        points = " ".join(f"{x:g},{y:g}" for x, y in [(x2, y2), *head])
        self.parts.append(f'<polygon points="{points}" style="fill: {INK};"/>')

    def svg(self):
        """The picture as the text of a file."""
        width, height = self.size
        rules = "\n".join(
            f'  [style*="{use}: {light}"] {{ {use}: {dark} !important }}'
            for light, dark in DARK_COLOURS.items()
            for use in ("fill", "stroke")
        )
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
                f'viewBox="0 0 {width:g} {height:g}" role="img">',
                f"<title>{escape(self.title)}</title>",
                f"<style>\n@media (prefers-color-scheme: dark) {{\n{rules}\n}}\n</style>",
                *self.parts,
                "</svg>\n",
            ]
        )
