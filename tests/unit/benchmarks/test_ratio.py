"""The order of measurements, and what is made of them."""

from itertools import count

import pytest

from benchmarks.ratio import Ratio, repeat, summarize


def ignore(*_):
    """A report that does nothing."""


def in_turn(measure_a, measure_b):
    """A round of one pair, called "tea"."""
    return lambda: {"tea": (measure_a(), measure_b())}


def clock():
    """A round whose pairs are (0, 1), (2, 3), ..."""
    tick = count()
    return in_turn(lambda: next(tick), lambda: next(tick))


def test_sides_take_turns_and_a_begins():
    order = []
    repeat(in_turn(lambda: order.append("A"), lambda: order.append("B")), 2, ignore)
    assert order == ["A", "B", "A", "B", "A", "B"]


def test_the_first_round_only_warms_up():
    assert repeat(clock(), 2, ignore) == {"tea": [(2, 3), (4, 5)]}


def test_without_a_warm_up_the_first_round_counts():
    reports = []
    assert repeat(clock(), 2, lambda *report: reports.append(report), warm_up=False) == {"tea": [(0, 1), (2, 3)]}
    assert reports == [(1, {"tea": (0, 1)}), (2, {"tea": (2, 3)})]


def test_every_round_is_reported_the_warm_up_as_number_0():
    reports = []
    repeat(clock(), 2, lambda *report: reports.append(report))
    assert [number for number, _ in reports] == [0, 1, 2]


def test_a_round_can_have_pairs_of_several_comparisons():
    assert repeat(lambda: {"tea": (1, 2), "milk": (3, 2)}, 2, ignore) == {"tea": [(1, 2)] * 2, "milk": [(3, 2)] * 2}


def test_the_ratio_is_that_of_the_medians_and_forgets_a_disturbed_pair():
    ratio = summarize([(1.0, 1.0), (30.0, 2.0), (3.0, 2.0)])
    assert ratio == Ratio(a=3.0, b=2.0, low=1.0, high=15.0, pairs=3)
    assert ratio.value == pytest.approx(1.5)


def test_an_even_number_of_pairs_has_a_median_between_two():
    assert summarize([(1.0, 1.0), (2.0, 1.0)]).a == pytest.approx(1.5)
