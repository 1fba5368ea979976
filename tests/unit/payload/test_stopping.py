"""training/stopping.py: a signal to one rank stops all of them, at the same step."""

import os
import signal

import pytest
import torch
from training.distributed import World, process_group
from training.stopping import SIGNALS, StopSignals

ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture(autouse=True)
def handlers():
    """What the signals do is the same after a test as before."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def group():
    with process_group({}, use_gpu=False, timeout=10) as world:
        yield world


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_and_then_agreed_on_by_its_name(group, number):
    with StopSignals(group) as stop:
        assert not stop.agreed(now=True)
        os.kill(os.getpid(), number)
        assert stop.agreed(now=True)
        assert stop.name == number.name
        assert stop.status == (130 if number == signal.SIGINT else 75)


@pytest.mark.parametrize("number", [None, signal.SIGUSR1])
def test_after_a_decision_and_after_the_end_signals_change_nothing(group, number):
    with StopSignals(group) as stop:
        if number:
            os.kill(os.getpid(), number)
        assert stop.agreed(now=True) is (number is not None)
    for each in SIGNALS:
        os.kill(os.getpid(), each)


def test_after_a_fault_signals_do_what_they_did_before(group, handlers):
    with pytest.raises(ZeroDivisionError), StopSignals(group):
        assert signal.getsignal(signal.SIGTERM) != handlers[signal.SIGTERM]
        raise ZeroDivisionError
    assert {number: signal.getsignal(number) for number in SIGNALS} == handlers


def test_ctrl_c_is_noted_and_the_same_one_by_way_of_the_launcher_too(group, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with StopSignals(group) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        now[0] += 2
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.agreed(now=True)
        assert (stop.name, stop.status) == ("SIGINT", 130)


def test_where_nothing_can_be_saved_signals_do_what_they_always_do(handlers):
    with StopSignals(ALONE, enabled=False) as stop:
        assert {number: signal.getsignal(number) for number in SIGNALS} == handlers
        assert not stop.agreed() and not stop.agreed(now=True)


def test_a_signal_to_one_rank_stops_all_at_the_same_step_and_they_wait_for_what_rank_0_brings_to_an_end(
    run_code, tmp_path
):
    ranks = run_code(
        3,
        f"""
import os, signal, sys, time
from pathlib import Path
from training.distributed import process_group
from training.stopping import STOPPED, StopSignals

report = Path({str(tmp_path / "report")!r})
with process_group(os.environ, use_gpu=False, timeout=600) as world:
    try:
        with StopSignals(world, interval=4) as stop:
            for step in range(1, 1000):
                if step == 6 and world.rank == 2:
                    os.kill(os.getpid(), signal.SIGUSR1)
                if stop.agreed():
                    break
            print(stop.name, step)
            os.kill(os.getpid(), signal.SIGTERM)  # more signals follow
            try:
                sys.exit(STOPPED)
            finally:
                if world.rank == 0:
                    time.sleep(0.3)
                    report.touch()
    finally:
        print(report.exists())
        os.kill(os.getpid(), signal.SIGTERM)
""",
    )
    assert [rank.stdout for rank in ranks] == ["SIGUSR1 8\nTrue\n"] * 3
    assert [(rank.status, rank.stderr) for rank in ranks] == [(75, "")] * 3


def test_a_rank_that_dies_while_others_wait_for_it_does_not_change_their_status(run_code):
    ranks = run_code(
        2,
        """
import os, sys, time
from torch.distributed import barrier
from training.distributed import process_group
from training.stopping import STOPPED, StopSignals

with process_group(os.environ, use_gpu=False, timeout=600) as world, StopSignals(world):
    barrier()
    if world.rank == 0:
        time.sleep(0.5)  # rank 1 has left the barrier
        os._exit(9)
    sys.exit(STOPPED)
""",
    )
    assert [rank.status for rank in ranks] == [9, 75]


def test_the_thread_that_ends_the_process_at_once_ends_when_the_signals_are_noted(run_code):
    (rank,) = run_code(
        1,
        """
import os, signal, threading
from training.signals import end_at_once
end_at_once()
(watch,) = (thread for thread in threading.enumerate() if thread is not threading.main_thread())
from training.distributed import process_group
from training.stopping import StopSignals
with process_group({}, use_gpu=False, timeout=600) as world, StopSignals(world) as stop:
    os.kill(os.getpid(), signal.SIGUSR1)
    watch.join(60)
    print(watch.is_alive(), signal.set_wakeup_fd(-1), stop.agreed(now=True))
""",
    )
    assert (rank.status, rank.stdout) == (0, "False -1 True\n"), rank
