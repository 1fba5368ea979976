"""Draws pictures with matplotlib, where it is installed, in the colours of all of them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

# Okabe and Ito's colours, which the colour-blind tell apart: https://jfly.uni-koeln.de/color
BLUE, GREEN, ORANGE, GREY = "#0072B2", "#009E73", "#D55E00", "#666666"


def write_picture(picture: Path, draw: Callable, *, width: float) -> bool:
    """Let ``draw`` fill a figure of ``width`` inches and write it, whole or not at all.

    A picture is not worth a training: where it cannot be made, a line says why. Returns whether
    it was made.
    """
    style = {
        "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
        "axes.formatter.useoffset": False, "axes.titlesize": 11, "axes.titlelocation": "left",
        "font.size": 9, "lines.markersize": 4,
    }  # fmt: skip
    temporary = picture.with_name(f".{picture.name}.{secrets.token_hex(4)}")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure

        with rc_context(style):
            figure = Figure(figsize=(width, 3.6), dpi=120, layout="constrained")
            draw(figure)
            figure.savefig(temporary, format="png")
        temporary.replace(picture)
    except ImportError as error:
        print(f"no {picture} ({error}): pip install matplotlib", flush=True)
        return False
    except OSError as error:
        print(f"no {picture}: cannot be written ({error.strerror})", flush=True)
        return False
    except Exception as error:  # whatever matplotlib, its settings and its fonts can raise
        print(f"no {picture}: {error}", flush=True)
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True
