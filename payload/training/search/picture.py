"""The table of the trials and their picture."""

from __future__ import annotations

import argparse
from itertools import accumulate
from pathlib import Path

from training.pictures import BLUE, GREY, ORANGE, write_picture


def shorten(value: object) -> str:
    return f"{value:#.4g}" if isinstance(value, float) else str(value)


def table(rows: list[list[str]]) -> str:
    """Return rows of text as lines with the columns one below the other."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(map(str.rjust, row, widths)) for row in rows)


def draw_search(trials: list, options: argparse.Namespace, picture: Path) -> bool:
    """Draw the metric over the trials, which come best first, and over each parameter."""
    best = trials[0]
    values = [trial.value for trial in trials]
    # One training that went astray would press all others together: the worst quarter may end at
    # the edge, as a triangle. The axis ends there too, so what lies within it is where its value is.
    better = min if options.minimize else max
    edge = better(values[0] + 2 * (values[len(values) * 3 // 4] - values[0]), values[-1])
    clipped = edge not in (values[0], values[-1])
    margin = 0.05 * abs(values[0] - edge) or 0.5

    def clip(value: float) -> float:
        return better(value, edge) if clipped else value

    def scatter(panel, places: list) -> None:
        beyond = [clip(value) != value for value in values]
        for marker, label, group in (
            ("o", "trial", False), ("^" if options.minimize else "v", "trial, beyond the scale", True),
        ):  # fmt: skip
            points = [(x, clip(y)) for x, y, outside in zip(places, values, beyond) if outside == group]
            if points:
                panel.plot(*zip(*points), marker, color=BLUE, alpha=0.7, markersize=6, label=label, clip_on=False)
        panel.plot(places[0], values[0], "*", color=ORANGE, markersize=14, label="best trial", clip_on=False)

    def draw(figure) -> None:
        chosen = ", ".join(f"{name} {shorten(value)}" for name, value in best.params.items())
        title = f"Best of {len(trials)} trials: {options.metric} {shorten(best.value)} with {chosen}"
        figure.suptitle(title, x=0.01, ha="left", weight="bold")
        panels = figure.subplots(1, 1 + len(options.space), sharey=True)
        panels[0].set(xlabel="trial", ylabel=options.metric)
        panels[0].xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        order = sorted(trials, key=lambda trial: trial.number)
        so_far = accumulate((t.value for t in order), better)
        numbers = [trial.number for trial in order]
        panels[0].step(numbers, list(map(clip, so_far)), where="post", color=GREY, label="best so far")
        scatter(panels[0], [trial.number for trial in trials])
        for panel, parameter in zip(panels[1:], options.space):
            places = [trial.params[parameter.name] for trial in trials]
            panel.set_xlabel(parameter.name)
            if parameter.choices:
                places = [parameter.choices.index(place) for place in places]
                panel.set_xticks(range(len(parameter.choices)), map(str, parameter.choices))
            elif parameter.log:
                panel.set_xscale("log", subs=())
                subs = (1, 2, 5) if max(places) < 300 * min(places) else (1,)
                panel.xaxis.get_major_locator().set_params(subs=subs)
                panel.xaxis.set_major_formatter("{x:g}")
                panel.xaxis.set_minor_formatter("")
            elif isinstance(parameter.low, int):
                panel.xaxis.get_major_locator().set_params(integer=True)
            scatter(panel, places)
        end = edge if clipped else values[-1] - margin * (-1 if options.minimize else 1)
        panels[0].set_ylim(sorted((end, values[0] + margin * (-1 if options.minimize else 1))))
        lines, labels = panels[0].get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside lower left", ncols=len(labels), frameon=False)

    return write_picture(picture, draw, width=4 * (1 + len(options.space)))
