"""Measures two things in turn and reduces what they took to a ratio; called by `run`.

A machine that slows down for a minute slows both sides of a pair, and a median forgets the pair in
which only one side was disturbed. So the ratio holds where the seconds do not. What the two are measured in
is all the same here.
"""

from statistics import median
from typing import NamedTuple


class Ratio(NamedTuple):
    """What a number of pairs say.

    `a`, `b`       medians of the two sides, in their unit
    `low`, `high`  smallest and largest ratio of a single pair
    `pairs`        number of pairs behind them
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


def alternate(measure_a, measure_b, pairs, report, warm_up=True):
    """Measure A B A B ...: one pair that only warms up and is discarded, then `pairs` more.

    The measures return numbers. `report` is called after each pair with its number, 0 for the
    warm-up, and the two results; without `warm_up` there is none. Returns the list of pairs of results.
    """
    measured = []
    for number in range(0 if warm_up else 1, pairs + 1):
        pair = (measure_a(), measure_b())
        report(number, *pair)
        if number:
            measured.append(pair)
    return measured


def summarize(measured):
    """The Ratio of a list of pairs of results, at least one."""
    single = [a / b for a, b in measured]
    return Ratio(
        a=median(a for a, _ in measured),
        b=median(b for _, b in measured),
        low=min(single),
        high=max(single),
        pairs=len(measured),
    )
