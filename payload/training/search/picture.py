"""The table of a study's trials, and their picture."""

from __future__ import annotations

import argparse
from itertools import accumulate
from pathlib import Path

from training.pictures import BLUE, GREY, ORANGE, write_picture
from training.search.space import Parameter


def shorten(value: object) -> str:
    return f"{value:#.4g}" if isinstance(value, float) else str(value)


def table(rows: list[list[str]]) -> str:
    """Return rows of text as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(map(str.rjust, row, widths)) for row in rows)


def draw_search(trials: list, options: argparse.Namespace, picture: Path) -> bool:
    """Draw the metric over the trials, which come best first, and over each parameter."""
    best, values = trials[0], [trial.value for trial in trials]
    better, beyond = (min, "^") if options.minimize else (max, "v")
    # A few bad values would leave little room: the worst quarter may be beyond the axis, drawn at its end.
    edge = better(best.value + 2 * (values[len(values) * 3 // 4] - best.value), values[-1])
    heights = values if edge == best.value else [better(value, edge) for value in values]
    groups = [("o", "trial", False)] + [(beyond, "trial, beyond the scale", True)] * (heights != values)

    def draw(figure) -> None:
        chosen = ", ".join(f"{name} {shorten(value)}" for name, value in best.params.items())
        title = f"Best of {len(trials)} trials: {options.metric} {shorten(best.value)} with {chosen}"
        figure.suptitle(title, x=0.01, ha="left", weight="bold")
        panels = figure.subplots(1, 1 + len(options.space), sharey=True)
        panels[0].set(xlabel="trial", ylabel=options.metric)
        panels[0].xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        places = [[trial.number for trial in trials]]
        for panel, parameter in zip(panels[1:], options.space):
            places.append(set_axis(panel, parameter, [trial.params[parameter.name] for trial in trials]))
        numbers, in_turn = zip(*sorted(zip(places[0], heights)))
        panels[0].step(numbers, list(accumulate(in_turn, better)), where="post", color=GREY, label="best so far")
        for panel, xs in zip(panels, places):
            for marker, label, is_beyond in groups:
                points = [(x, y) for x, y, value in zip(xs, heights, values) if (y != value) == is_beyond]
                panel.plot(*zip(*points), marker, color=BLUE, alpha=0.7, markersize=6, label=label, clip_on=False)
            panel.plot(xs[0], heights[0], "*", color=ORANGE, markersize=14, label="best trial", clip_on=False)
        lines, labels = panels[0].get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside lower left", ncols=len(labels), frameon=False)

    return write_picture(picture, draw, width=4 * (1 + len(options.space)))


def set_axis(panel, parameter: Parameter, values: list) -> list:
    """Set up the axis of a parameter; return the places of ``values`` on it."""
    panel.set_xlabel(parameter.name)
    axis = panel.xaxis
    if parameter.choices:
        panel.set_xticks(range(len(parameter.choices)), map(str, parameter.choices))
        return [parameter.choices.index(value) for value in values]
    if parameter.log:
        panel.set_xscale("log", subs=())
        subs = (1, 2, 5) if max(values) < 300 * min(values) else (1,)
        axis.get_major_locator().set_params(subs=subs)
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    elif isinstance(parameter.low, int):
        axis.get_major_locator().set_params(integer=True)
    return values
