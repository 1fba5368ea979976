"""The space of a search: its hyper-parameters, as they are typed on the command line."""

from __future__ import annotations

from typing import NamedTuple


class Parameter(NamedTuple):
    """A hyper-parameter: one of ``choices``, else from ``low`` to ``high``, on a linear or a logarithmic scale."""

    text: str
    name: str
    low: float = 0
    high: float = 0
    log: bool = False
    choices: tuple = ()


def parse_parameter(text: str) -> Parameter:
    """Read ``lr=log:0.001..0.1``, ``warmup=0..2`` or ``batch-size=64,128``.

    A range between two integers holds integers. Raises ValueError for anything else.
    """

    def number(word: str) -> float:
        value = int(word) if word.lstrip("-").isdigit() else float(word)
        if not abs(value) < (2**63 if isinstance(value, int) else 1e300):  # the limits of Optuna's arithmetic
            raise ValueError(text)
        return value

    name, _, values = text.partition("=")
    if not name or not values:
        raise ValueError(text)
    if ".." not in values:
        try:
            return Parameter(text, name, choices=tuple(map(number, values.split(","))))
        except ValueError:
            return Parameter(text, name, choices=tuple(values.split(",")))
    log = values.startswith("log:")
    low, _, high = values[len("log:") * log :].partition("..")
    parameter = Parameter(text, name, number(low), number(high), log)
    if not parameter.low < parameter.high or (log and parameter.low <= 0):
        raise ValueError(text)
    return parameter
