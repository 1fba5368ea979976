"""training/stopping.py: a signal to one rank stops all of them, at the same step, also with workers of a DataLoader."""

import os
import signal
import subprocess
import sys
import time

import pytest
from launching import PAYLOAD, run_code
from training.stopping import SIGNALS, StopSignals

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def handlers():
    """What the signals do is the same after a test as before."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_and_then_agreed_on_by_its_name(alone, number):
    with StopSignals(alone) as stop:
        assert not stop.agreed(now=True)
        os.kill(os.getpid(), number)
        assert stop.agreed(now=True)
        assert stop.received == number
        assert stop.status == (130 if number == signal.SIGINT else 75)


@pytest.mark.parametrize("number", [None, signal.SIGUSR1])
def test_after_a_decision_and_after_the_end_signals_change_nothing(alone, number):
    with StopSignals(alone) as stop:
        if number:
            os.kill(os.getpid(), number)
        assert stop.agreed(now=True) is (number is not None)
    for each in SIGNALS:
        os.kill(os.getpid(), each)


def test_after_a_fault_signals_do_what_they_did_before(alone, handlers):
    with pytest.raises(ZeroDivisionError), StopSignals(alone):
        assert signal.getsignal(signal.SIGTERM) != handlers[signal.SIGTERM]
        raise ZeroDivisionError
    assert {number: signal.getsignal(number) for number in SIGNALS} == handlers


def test_ctrl_c_is_noted_and_the_same_one_by_way_of_the_launcher_too(alone, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    with StopSignals(alone) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        now[0] += 2
        assert not ended
        os.kill(os.getpid(), signal.SIGINT)
        assert ended == [130]
        assert stop.agreed(now=True)
        assert (stop.received, stop.status) == (signal.SIGINT, 130)


def test_a_signal_to_one_rank_stops_all_at_the_same_step_and_they_wait_for_what_rank_0_brings_to_an_end(tmp_path):
    ranks = run_code(
        3,
        f"""
report = Path({str(tmp_path / "report")!r})
with process_group(os.environ, use_gpu=False, timeout=600) as world:
    try:
        with StopSignals(world, interval=4) as stop:
            for step in range(1, 1000):
                if step == 6 and world.rank == 2:
                    os.kill(os.getpid(), signal.SIGUSR1)
                if stop.agreed():
                    break
            print(signal.Signals(stop.received).name, step)
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
        status=75,
    )
    assert [rank.stdout for rank in ranks] == ["SIGUSR1 8\nTrue\n"] * 3
    assert [rank.stderr for rank in ranks] == [""] * 3


def test_a_rank_that_dies_while_others_wait_for_it_does_not_change_their_status():
    ranks = run_code(
        2,
        """
with process_group(os.environ, use_gpu=False, timeout=600) as world, StopSignals(world):
    dist.barrier()
    if world.rank == 0:
        time.sleep(0.5)  # rank 1 has left the barrier
        os._exit(9)
    sys.exit(STOPPED)
""",
        status=None,
    )
    assert [rank.status for rank in ranks] == [9, 75]


#: A training with two workers; one of them hangs after 20 samples where the last argument is "stuck".
WORKERS = """
import os, signal, subprocess, sys, time
import torch
from torch.utils.data import DataLoader, Dataset
from training.distributed import process_group
from training.stopping import StopSignals

class Samples(Dataset):
    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        if index > 20 and sys.argv[2] == "stuck":
            time.sleep(10**6)
        return torch.ones(2)

if __name__ == "__main__":
    with process_group({}, use_gpu=False, timeout=60) as world, StopSignals(world, interval=1) as stop:
        child = subprocess.Popen(["sleep", "1000"])
        child.terminate()
        assert child.wait() == -15
        print("ready", flush=True)
        for step, _ in enumerate(DataLoader(Samples(), num_workers=2, multiprocessing_context=sys.argv[1])):
            if step == 0:
                print("first", flush=True)
            if step == 18 and sys.argv[2] == "stuck":
                break
            if stop.agreed():
                print("saved", signal.Signals(stop.received).name)
                raise SystemExit(stop.status)
"""


@pytest.fixture
def train_with_workers(tmp_path):
    """A function that starts the training in a session of its own, and returns when it has said a word."""

    def start(method, kind, word):
        (tmp_path / "train.py").write_text(WORKERS)
        command = [sys.executable, tmp_path / "train.py", method, kind]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
        training = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(PAYLOAD)}, **options)
        while word not in training.stdout.readline():
            assert training.poll() is None
        return training

    return start


METHODS = ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.thorough)]


@pytest.mark.parametrize("method", METHODS)
def test_a_signal_to_all_processes_of_a_step_leaves_the_workers_of_a_data_loader(train_with_workers, method, draw):
    number = draw.choice([signal.SIGUSR1, signal.SIGTERM])
    training = train_with_workers(method, "", draw.choice(["first", "ready"]))
    time.sleep(draw.uniform(0, 1))  # after "ready" the workers start
    os.killpg(training.pid, number)
    printed, errors = training.communicate(timeout=600)
    assert (training.returncode, errors) == (75, "")
    assert f"saved {number.name}" in printed


@pytest.mark.parametrize("method", METHODS)
def test_workers_that_hang_end_with_the_training(train_with_workers, method):
    training = train_with_workers(method, "stuck", "first")
    assert training.communicate(timeout=600)[1] == "" and training.returncode == 0
    with pytest.raises(ProcessLookupError):
        while True:  # a fork server ends just after the training
            os.killpg(training.pid, 0)
            time.sleep(0.1)
