"""The order of measurements, and what is made of them."""

from itertools import count

import pytest

from benchmarks.ratio import Ratio, alternate, summarize


def nobody(*_):
    """Take a report and drop it."""


def test_sides_take_turns_and_a_begins():
    order = []
    alternate(lambda: order.append("A"), lambda: order.append("B"), 2, nobody)
    assert order == ["A", "B", "A", "B", "A", "B"]


def test_the_first_pair_only_warms_up():
    clock = count()
    assert alternate(lambda: next(clock), lambda: next(clock), 2, nobody) == [(2, 3), (4, 5)]


def test_what_needs_no_warm_up_is_measured_from_the_first_pair():
    clock = count()
    reports = []
    pairs = alternate(
        lambda: next(clock), lambda: next(clock), 2, lambda *report: reports.append(report), warm_up=False
    )
    assert pairs == [(0, 1), (2, 3)]
    assert reports == [(1, 0, 1), (2, 2, 3)]


def test_every_pair_is_reported_the_warm_up_as_number_0():
    reports = []
    alternate(lambda: 2.0, lambda: 1.0, 2, lambda *report: reports.append(report))
    assert reports == [(0, 2.0, 1.0), (1, 2.0, 1.0), (2, 2.0, 1.0)]


def test_the_ratio_is_that_of_the_medians_and_forgets_a_disturbed_pair():
    ratio = summarize([(1.0, 1.0), (30.0, 2.0), (3.0, 2.0)])
    assert ratio == Ratio(a=3.0, b=2.0, low=1.0, high=15.0, pairs=3)
    assert ratio.value == pytest.approx(1.5)


def test_an_even_number_of_pairs_has_a_median_between_two():
    assert summarize([(1.0, 1.0), (2.0, 1.0)]).a == pytest.approx(1.5)
