"""The training of one trial: its command, its process and its result."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from training import TrainingError
from training.metrics import METRICS_FILE, finite_number, read_objects
from training.signals import STOPPED

LOG = "log"  # the file in the directory of a trial with the output of its training
PRCTL = getattr(ctypes.CDLL(None), "prctl", None)  # Linux only
PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


class TrialProcess:
    """The process of a training, one at a time, and the signal that stopped it."""

    def __init__(self) -> None:
        self.child = None
        self.stopped = 0  # the number of the signal

    def run(self, command: list[str], log: Path, interval: float, beat: Callable[[], None]) -> int:
        """Run a command, append its output to ``log``, call ``beat`` every ``interval`` seconds; return its status."""
        with log.open("ab") as file:
            self.child = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT,
                preexec_fn=PRCTL and partial(stop_with_parent, os.getpid()),
            )  # fmt: skip
        if self.stopped:  # the signal came before there was a child
            self.child.terminate()
        while True:
            try:
                return self.child.wait(timeout=interval)
            except subprocess.TimeoutExpired:
                beat()

    def stop(self, number: int, _frame) -> None:
        """Handle a signal: forward it to the training, which writes a checkpoint and exits."""
        self.stopped = number
        if self.child and self.child.poll() is None:
            self.child.send_signal(number)


def trial_command(command: list[str], directory: Path, parameters: dict) -> list[str]:
    """Return the command that trains with ``parameters`` in ``directory``."""
    chosen = [word for name, value in parameters.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-u", *command, "--modelpath", str(directory), *chosen]


def stop_with_parent(parent: int) -> None:
    """Stop this process when its parent is killed: the process that takes over must have the directory to itself."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    PRCTL(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # killed before the call
        os._exit(STOPPED)


def last_value(metrics_file: Path, metric: str) -> float:
    """Return the metric of the last epoch; TrainingError if it is missing or not a finite number."""
    epochs = read_objects(metrics_file)
    if not epochs or metric not in epochs[-1]:
        raise TrainingError(f"no {metric} in {METRICS_FILE}")
    value = finite_number(epochs[-1][metric])
    if value is None:
        raise TrainingError(f"{metric} in {METRICS_FILE} is {repr(epochs[-1][metric])[:40]}, not a finite number")
    return value
