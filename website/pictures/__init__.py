"""The pictures of the pages, each drawn from data: recipes, the launcher's plans, and measurements."""

from functools import partial
from pathlib import Path

from benchmarks import picture as benchmarks
from benchmarks.results import RESULTS, Results
from website.pictures import chain, curves, node, rank

DIRECTORY = Path(__file__).resolve().parents[2] / "docs" / "pictures"

#: The name of each file in docs/pictures/, and the function that returns its text.
PICTURES = {
    "chain": chain.draw,
    "rank": rank.draw,
    **{f"node-{name}": partial(node.draw, name) for name in node.SYSTEMS},
    "mnist": curves.draw_mnist,
    "language-model": curves.draw_language_model,
    "benchmarks": lambda: benchmarks.draw(Results.load(RESULTS)),
}
if Results.load(RESULTS).starts:  # the page has this picture once its table was measured
#: These need matplotlib.
