# SPDX-License-Identifier: BSD-3-Clause
"""Draws the payload's pictures with matplotlib, if it is installed."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from training.files import write_file

# The first is matplotlib's own, whose colours are distinct also for colour-blind readers.
STYLES = ["tableau-colorblind10", {"axes.grid": True, "grid.alpha": 0.3, "font.size": 9, "lines.markersize": 4}]


def write_picture(picture: Path, draw: Callable, *, width: float) -> bool:
    """Call ``draw`` on a figure of ``width`` inches and write it to ``picture``; return whether that succeeded.

    ``draw`` may return another figure. A failure is reported in a line and raises nothing: it must not end a training.
    """
    try:
        from matplotlib import style
        from matplotlib.figure import Figure

        with style.context(STYLES):
            figure = Figure(figsize=(width, 3.6), dpi=120, layout="constrained")
            figure = draw(figure) or figure
            content = io.BytesIO()
            figure.savefig(content, format="png")
        write_file(picture, content.getvalue())
    except Exception as error:  # matplotlib, its settings and its fonts can raise anything
        remedy = ": pip install matplotlib" if isinstance(error, ImportError) else ""
        print(f"no {picture} ({error}){remedy}", flush=True)
        return False
    return True
