"""Repeats a measurement of pairs in rounds, and reduces the pairs to a ratio.

If the machine slows down for a minute, it slows both sides of a round, and the median ignores a round in which
only one side was disturbed. So the ratio is reproducible where the seconds are not.
"""

from statistics import median
from typing import NamedTuple


class Ratio(NamedTuple):
    """Summary of a number of pairs (A, B).

    `a`, `b`       medians of the two sides, in their unit
    `low`, `high`  smallest and largest ratio of a single pair
    `pairs`        number of pairs
    """

    a: float
    b: float
    low: float
    high: float
    pairs: int

    @property
    def value(self):
        """The ratio of the medians."""
        return self.a / self.b


def repeat(measure_round, rounds, report, warm_up=True):
    """Measure `rounds` rounds, after one that is discarded if `warm_up`.

    `measure_round` measures every side once and returns {name: (A, B)}. `report` is called after each round with its
    number, 0 for the warm-up, and these pairs. Returns {name: list of pairs}.
    """
    measured = {}
    for number in range(0 if warm_up else 1, rounds + 1):
        pairs = measure_round()
        report(number, pairs)
        if number:
            for name, pair in pairs.items():
                measured.setdefault(name, []).append(pair)
    return measured


def summarize(pairs):
    """The Ratio of a list of pairs, at least one."""
    single = [a / b for a, b in pairs]
    return Ratio(
        a=median(a for a, _ in pairs),
        b=median(b for _, b in pairs),
        low=min(single),
        high=max(single),
        pairs=len(pairs),
    )
