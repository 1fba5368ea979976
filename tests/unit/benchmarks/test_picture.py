"""The picture of the ratios."""

import re

import pytest
from contrast import contrast

pytest.importorskip("matplotlib")
from benchmarks import picture, svg  # noqa: E402
from benchmarks.experiments import COMPARISONS  # noqa: E402
from benchmarks.ratio import Ratio  # noqa: E402
from benchmarks.results import Results  # noqa: E402

MET = next(each for each in COMPARISONS if each.target == 1.2)
SMALL = next(each for each in COMPARISONS if each.target == 0.01)
FREE = next(each for each in COMPARISONS if each.target is None)


def draw(ratios, notice=""):
    """The picture of some ratios, each without a spread."""
    ratios = {each.name: Ratio(value, 1.0, value, value, 7) for each, value in ratios.items()}
    return picture.draw(Results(ratios, {}, {}, [], "", notice))


def texts(svg):
    """All words in a picture."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_every_row_has_its_name_and_its_ratio():
    words = texts(draw({MET: 1.1, SMALL: 0.002, FREE: 1.43}))
    for word in (MET.name, "1.10", SMALL.name, "0.0020", FREE.name, "1.43"):
        assert word in words


def test_a_missed_target_differs_in_words_and_shape():
    met, missed = draw({MET: 1.1}), draw({MET: 1.3})
    assert "1.10" in texts(met)
    assert "1.30, missed" in texts(missed)
    assert picture.marker(True)["marker"] != picture.marker(False)["marker"]
    # beside the legend's marks
    assert len(marks(met, picture.MET)) == len(marks(missed, picture.MET)) + 1
    assert len(marks(missed, picture.MISSED)) == len(marks(met, picture.MISSED)) + 1


def marks(svg, colour):
    """The marks of a colour, the legend's included."""
    return re.findall(rf'<use [^>]*style="[^"]*stroke: {colour}', svg)


def test_small_ratios_have_a_panel_of_their_own():
    assert "0.01" in texts(draw({MET: 1.1, SMALL: 0.002}))
    assert "0.01" not in texts(draw({MET: 1.1}))


def test_a_notice_is_in_the_picture():
    assert "Not for the page" in texts(draw({MET: 1.1}, notice="Not for `the page`"))


def test_every_colour_has_a_contrast_with_the_background_in_light_and_in_dark():
    """At least 4.5 to 1 for what is read, as of WCAG 2.2, 1.4.3; the grid may be fainter."""
    for background, *colours in (list(svg.DARK), list(svg.DARK.values())):
        ink, _, *lines = colours
        assert all(contrast(colour, background) >= 4.5 for colour in (ink, *lines))


def test_every_colour_of_the_picture_has_a_dark_one():
    drawn = draw({MET: 1.3, SMALL: 0.002, FREE: 1.43})
    used = set(re.findall(r'style="[^"]*"', drawn))
    colours = {colour for style in used for colour in re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", style)}
    assert colours <= set(svg.DARK)
    for light, dark in svg.DARK.items():
        assert f'[style*="fill: {light}"] {{ fill: {dark} !important }}' in drawn
