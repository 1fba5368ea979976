"""The picture of the ratios."""

import re

import pytest
from contrast import contrast

pytest.importorskip("matplotlib")
from benchmarks import picture  # noqa: E402
from benchmarks.results import Ratio, Results  # noqa: E402
from benchmarks.rows import ROWS  # noqa: E402

NEAR_1, SMALL = ROWS["launch-host"], ROWS["metadata"]


def draw(**ratios):
    """The picture of some ratios, each without a spread."""
    ratios = {name.replace("_", "-"): Ratio(value, 1.0, value, value, 7) for name, value in ratios.items()}
    return picture.draw(Results(ratios, {}, {}))


def texts(svg):
    """All words in a picture."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def marks(svg, colour):
    """The number of marks of a colour, the legend's included."""
    return len(re.findall(rf'<use [^>]*style="[^"]*stroke: {colour}', svg))


def test_every_row_has_its_name_and_its_ratio():
    words = texts(draw(launch_host=1.1, metadata=0.002, save=1.43))
    assert {"launch-host", "1.10", "metadata", "0.0020", "save", "1.43", "0.01", "1"} <= set(words)


def test_a_missed_target_differs_in_words_and_shape():
    met, missed = draw(launch_host=1.1), draw(launch_host=1.3)
    assert "1.10" in texts(met)
    assert "1.30, missed" in texts(missed)
    assert picture.MISS["marker"] != picture.RATIO["marker"]
    assert marks(met, picture.MET) > marks(missed, picture.MET)
    assert marks(missed, picture.MISSED) > marks(met, picture.MISSED)


def test_every_colour_has_a_dark_one_and_a_contrast_with_the_background():
    """At least 4.5 to 1 for what is read, as of WCAG 2.2, 1.4.3; the grid may be fainter."""
    for background, ink, _, *lines in (list(picture.DARK), list(picture.DARK.values())):
        assert all(contrast(colour, background) >= 4.5 for colour in (ink, *lines))
    drawn = draw(launch_host=1.3, metadata=0.002, save=1.43)
    used = set(re.findall(r'style="[^"]*"', drawn))
    colours = {colour for style in used for colour in re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", style)}
    assert colours <= set(picture.DARK)
    for light, dark in picture.DARK.items():
        assert f'[style*="fill: {light}"] {{ fill: {dark} !important }}' in drawn
