"""The pictures of the pages: drawn from today's data, used, and legible in light and in dark."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from contrast import contrast

from website.pictures import DIRECTORY, PICTURES, PLOTS, canvas, node
from website.pictures.launcher import cpu_list

TREE = Path(__file__).resolve().parents[3]
PAGES = [TREE / "README.md", *sorted((TREE / "docs").rglob("*.md"))]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_that_of_todays_data(name):
    """After a change of what it shows: website/draw."""
    if name in PLOTS:
        pytest.importorskip("matplotlib")
    assert (DIRECTORY / f"{name}.svg").read_text(encoding="utf-8") == PICTURES[name]()


def test_every_picture_is_drawn_by_the_command_and_on_a_page():
    files = {file.name for file in DIRECTORY.iterdir()}
    shown = {
        (page.parent / target).resolve().name
        for page in PAGES
        for target in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    assert files == {f"{name}.svg" for name in PICTURES} == shown


def test_words_are_legible_on_every_fill_in_light_and_in_dark():
    """At least 4.5 to 1, as of WCAG 2.2, 1.4.3."""
    for fill in canvas.DARK_FILLS:
        assert contrast(canvas.INK, fill) >= 4.5
        assert contrast(canvas.DARK_COLOURS[canvas.INK], canvas.DARK_FILLS[fill]) >= 4.5


def test_words_that_do_not_fit_are_an_error():
    picture = canvas.Canvas(100, 20, "narrow")
    picture.text(10, 10, "fits")
    with pytest.raises(ValueError, match="too long for the picture: much too long"):
        picture.text(10, 10, "much too long for this")


@pytest.mark.parametrize(
    ("system", "masks"),
    [
        # the masks that LUMI publishes, in the order of the cores
        ("lumi", {0: "49-55", 1: "57-63", 2: "17-23", 3: "25-31", 4: "1-7", 5: "9-15", 6: "33-39", 7: "41-47"}),
        ("perlmutter", {0: "48-63", 1: "32-47", 2: "16-31", 3: "0-15"}),
    ],
)
def test_the_squares_of_a_node_are_the_masks(system, masks):
    cells = numbers_in_squares(node.draw(system))
    assert {rank: cpu_list(set(cores)) for rank, cores in cells.items()} == masks


def numbers_in_squares(picture):
    """The cores of each rank: squares in the order of the cores, with or without a rank."""
    parts = list(ElementTree.fromstring(picture))  # noqa: S314  (our own picture)
    size = f"{node.CELL - 3:g}"
    words = [
        after.text
        for part, after in zip(parts, parts[1:])
        if part.get("width") == size and part.get("height") == size
    ]
    cores = {}
    for core, word in enumerate(words):
        if word:
            cores.setdefault(int(word), []).append(core)
    return cores
