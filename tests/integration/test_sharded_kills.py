"""lm_fsdp.py on two nodes is killed at random moments, half of them during an asynchronous save, and always resumes."""

import os
import random
import re
import signal
import time

import pytest
from lm_fsdp_run import LanguageModel, kill_all, stopped

pytestmark = pytest.mark.testbed

KILLS = 30
#: Steps that no start reaches; the learning rate depends on their number.
OPTIONS = ("--steps", 100_000, "--warmup", 10, "--interval", 10)
LINE = re.compile(r"^step (\d+)/\d+  (loss \S+  validation loss \S+)", re.MULTILINE)
SHARDS = [".metadata", "__0_0.distcp", "__1_0.distcp", "manifest.json"]


def kill_during_save(training, start, victims, moment):
    """Kill the ranks `victims` some seconds after a save began, if it lasts as long; else during a later one."""
    while start.srun.poll() is None:
        start.wait_until(training.is_saving)
        time.sleep(moment)
        ranks = start.ranks()
        with stopped(ranks):
            if training.is_saving():
                kill_all([ranks[rank] for rank in victims])
                return
    raise AssertionError(start.output())


def check_end(training, start, newest):
    """Check that a start that was killed had resumed from the newest checkpoint, if it got there; return the newest."""
    assert start.wait() not in (0, 75), start.output()
    resumed = re.search(r"resuming after (\d+) steps", start.output())
    assert not resumed or int(resumed[1]) == newest
    assert resumed or not newest or not LINE.search(start.output()), start.output()
    assert "damaged" not in start.output()
    kept = training.complete()
    assert len(kept) <= 4, "more than --keep and the one that is to be deleted"
    return max(kept, default=0)


@pytest.mark.thorough
def test_a_run_killed_at_30_random_moments_resumes_and_has_the_losses_of_one_in_one_go(testbed, venv, work):
    seed = int(os.environ.get("KILLS_SEED") or random.SystemRandom().randrange(2**32))
    print(f"KILLS_SEED={seed}")
    moments = random.Random(seed)  # noqa: S311
    training = LanguageModel(testbed, venv, work)
    losses, newest, longest, half_written = {}, 0, 0.0, 0
    for number in range(KILLS):
        began = time.monotonic()
        start = training.start(*OPTIONS, "--every", moments.choice([7, "0.3s"]))
        if not number:
            start.wait_until(training.complete)
            longest = 1.5 * (time.monotonic() - began)  # a start takes longer on a busy machine
        victims = moments.choice([(0,), (1,), (0, 1)])
        if number % 2:
            kill_during_save(training, start, victims, moments.uniform(0, 0.05))
        else:
            time.sleep(moments.uniform(0, longest))
            start.wait_until(lambda: len(start.ranks()) == 2)  # noqa: B023 (called at once)
            kill_all([rank for place, rank in enumerate(start.ranks()) if place in victims])
        reached = check_end(training, start, newest)
        assert reached >= newest
        newest = reached
        for step, values in LINE.findall(start.output()):
            assert losses.setdefault(int(step), values) == values
        left = training.is_saving()
        half_written += left
        when = ", during a save" if number % 2 else ""
        print(f"kill {number + 1}: ranks {victims}{when}, {'half-written' if left else 'clean'}, {newest} steps saved")
    print(f"{half_written} of {KILLS} kills left a half-written checkpoint")
    check_last_start(training, newest, losses)
    check_losses(training, losses)


def check_last_start(training, newest, losses):
    """Start once more, end the run by a signal, and check that only what it keeps is there."""
    start = training.start(*OPTIONS, "--every", 7)
    start.wait_until(lambda: len(LINE.findall(start.output())) > 1)
    os.kill(start.ranks()[1], signal.SIGTERM)
    assert start.wait() == 75, start.output()
    assert f"resuming after {newest} steps" in start.output()
    losses.update((int(step), values) for step, values in LINE.findall(start.output()))
    names = {path.name for path in training.run.iterdir()} - {"curves.png"}  # needs matplotlib
    assert names == {"checkpoints", "metrics.jsonl"}
    kept = sorted(training.checkpoints.iterdir())
    assert len(kept) == 3 and all(re.fullmatch(r"step-\d{8}", path.name) for path in kept)
    assert all(sorted(each.name for each in path.iterdir()) == SHARDS for path in kept)


def check_losses(training, losses):
    """Check that a run that saves nothing and is not stopped has the same losses."""
    last = max(losses)
    start = training.start(*OPTIONS, keep=None)
    start.wait_until(lambda: f"step {last}/" in start.output())
    kill_all(start.ranks())
    start.wait()
    through = {int(step): values for step, values in LINE.findall(start.output())}
    assert {step: through[step] for step in losses} == losses
    print(f"{len(losses)} losses, up to step {last}, are those of an uninterrupted run")
