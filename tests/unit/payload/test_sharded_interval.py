"""training/sharded: --every, and how rank 0's clock decides for all."""

import argparse
import time
from types import SimpleNamespace

import pytest
from training.sharded import Interval, ShardedCheckpoints, parse_interval


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
    assert parse_interval(text) == parse_interval(str(interval)) == interval  # trackers show it as a text


@pytest.mark.parametrize("text", ["", "0", "0m", "-3", "1.5", "nan", "inf", "3d", "m", "1e3", "9" * 400])
def test_another_text_is_an_error_that_names_the_forms(text):
    with pytest.raises(argparse.ArgumentTypeError, match="a number of steps, or a time such as 90s, 30m or 2h, found"):
        parse_interval(text)


class Saved(ShardedCheckpoints):
    """Notes the steps at which a checkpoint was started."""

    steps = ()

    def start(self, run):
        self.steps += (run.position.step,)
        self.began = time.monotonic()


@pytest.mark.parametrize(("every", "steps"), [(Interval(steps=3), (3, 6, 9)), (Interval(seconds=100), (16, 40))])
def test_a_checkpoint_is_due_after_steps_or_by_the_clock_of_rank_0_at_every_eighth_step(
    tmp_path, alone, monkeypatch, every, steps
):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    checkpoints = Saved(tmp_path, alone, every=every)
    for step in range(1, 10 if every.steps else 50):
        now += 9 if step < 17 else 5
        checkpoints.save_if_due(SimpleNamespace(position=SimpleNamespace(step=step)))
    assert checkpoints.steps == steps
    others = Saved(tmp_path, alone._replace(rank=1), every=Interval(seconds=1))
    now += 1000
    others.save_if_due(SimpleNamespace(position=SimpleNamespace(step=8)))
    assert others.steps == ()  # whatever its own clock tells
