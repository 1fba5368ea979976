"""training/sharded: --every, and how rank 0's clock decides for all."""

import argparse

import pytest
from training.sharded import Interval, parse_interval
from training.sharded.checkpoints import Timer


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("500", Interval(steps=500)),
        ("90s", Interval(seconds=90)),
        ("30m", Interval(seconds=1800)),
        ("1.5h", Interval(seconds=5400)),
    ],
)
def test_an_interval_is_steps_or_a_time(text, interval):
    assert parse_interval(text) == interval


@pytest.mark.parametrize("text", ["", "0", "0m", "-3", "1.5", "nan", "inf", "3d", "m", "1e3", "9" * 400])
def test_another_text_is_an_error_that_names_the_forms(text):
    with pytest.raises(argparse.ArgumentTypeError, match="a number of steps, or a time such as 90s, 30m or 2h, found"):
        parse_interval(text)


def test_steps_are_counted_without_asking_anybody():
    timer = Timer(Interval(steps=3), ask=None)
    assert [step for step in range(1, 10) if timer.is_due(step)] == [3, 6, 9]


def due(paces, every=100.0):
    """The times at which checkpoints are due, and how often rank 0 was asked, with these seconds per step."""
    now, asked, times = 0.0, 0, []

    def ask(choose):
        nonlocal asked
        asked += 1
        return choose()

    timer = Timer(Interval(seconds=every), ask, clock=lambda: now)
    for step, pace in enumerate(paces, start=1):
        now += pace
        if timer.is_due(step):
            times.append(now)
            timer.start(step)
    return times, asked


def test_a_time_is_met_to_the_step_with_few_questions():
    times, asked = due([0.01] * 30_500)
    assert times == pytest.approx([100, 200, 300], abs=0.03)
    assert asked < 60


def test_a_slow_first_step_delays_no_checkpoint():
    times, _ = due([60] + [0.1] * 2000)
    assert times[0] == pytest.approx(100, abs=0.2)


def test_a_pace_that_halves_delays_a_checkpoint_by_less_than_half():
    times, _ = due([0.1] * 100 + [0.2] * 2000)
    assert 100 <= times[0] < 150


def test_another_rank_follows_rank_0_whatever_its_own_clock_says():
    answers = iter([8, 0])
    timer = Timer(Interval(seconds=1), lambda _choose: next(answers), clock=lambda: 1e9)
    assert [step for step in range(1, 6) if timer.is_due(step)] == [5]
