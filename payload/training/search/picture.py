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


class Scale:
    """The axis of a metric, from its values, best first.

    A few bad values would leave little room for all others. So the worst quarter may be beyond the axis, drawn
    as triangles at its end; every value within the axis is drawn where it is.
    """

    def __init__(self, values: list[float], minimize: bool):
        self.values = values
        self.better = min if minimize else max
        self.worse = 1 if minimize else -1  # the direction of worse values
        best, worst = values[0], values[-1]
        self.edge = self.better(best + 2 * (values[len(values) * 3 // 4] - best), worst)
        self.is_clipped = self.edge not in (best, worst)

    def clip(self, value: float) -> float:
        """Return where to draw a value."""
        return self.better(value, self.edge) if self.is_clipped else value

    def limits(self) -> list[float]:
        """Return the ends of the axis."""
        best, worst = self.values[0], self.values[-1]
        margin = 0.05 * abs(best - self.edge) or 0.5
        return sorted((self.edge if self.is_clipped else worst + self.worse * margin, best - self.worse * margin))

    def scatter(self, panel, places: list) -> None:
        """Draw all values over ``places``, the best with a star."""
        is_beyond = [self.clip(value) != value for value in self.values]
        beyond = "^" if self.worse > 0 else "v"
        for marker, label, group in (("o", "trial", False), (beyond, "trial, beyond the scale", True)):
            points = [(x, self.clip(y)) for x, y, outside in zip(places, self.values, is_beyond) if outside == group]
            if points:
                panel.plot(*zip(*points), marker, color=BLUE, alpha=0.7, markersize=6, label=label, clip_on=False)
        panel.plot(places[0], self.values[0], "*", color=ORANGE, markersize=14, label="best trial", clip_on=False)


def draw_search(trials: list, options: argparse.Namespace, picture: Path) -> bool:
    """Draw the metric over the trials, which come best first, and over each parameter."""
    best = trials[0]
    scale = Scale([trial.value for trial in trials], options.minimize)

    def draw(figure) -> None:
        chosen = ", ".join(f"{name} {shorten(value)}" for name, value in best.params.items())
        title = f"Best of {len(trials)} trials: {options.metric} {shorten(best.value)} with {chosen}"
        figure.suptitle(title, x=0.01, ha="left", weight="bold")
        panels = figure.subplots(1, 1 + len(options.space), sharey=True)
        panels[0].set(xlabel="trial", ylabel=options.metric)
        panels[0].xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        order = sorted(trials, key=lambda trial: trial.number)
        so_far = accumulate((trial.value for trial in order), scale.better)
        numbers = [trial.number for trial in order]
        panels[0].step(numbers, list(map(scale.clip, so_far)), where="post", color=GREY, label="best so far")
        scale.scatter(panels[0], [trial.number for trial in trials])
        for panel, parameter in zip(panels[1:], options.space):
            scale.scatter(panel, set_axis(panel, parameter, [trial.params[parameter.name] for trial in trials]))
        panels[0].set_ylim(scale.limits())
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
