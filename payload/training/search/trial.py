"""The training of one trial: its lock, its command, its process and its result."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import IO

from training import TrainingError
from training.metrics import METRICS_FILE, finite_number, read_objects
from training.signals import STOPPED

LOG, LOCK = "log", "lock"  # files in the directory of a trial
PRCTL = getattr(ctypes.CDLL(None), "prctl", None)  # Linux only
PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def lock_trial(directory: Path, flags: int = 0) -> IO:
    """Return a file that stays locked until this process, and a training that inherits the file, have ended."""
    file = (directory / LOCK).open("a")  # for writing: flock(2), "NFS details"
    try:
        fcntl.flock(file, fcntl.LOCK_EX | flags)
    except OSError:
        file.close()
        raise
    return file


def is_running(directory: Path) -> bool:
    """Return whether a process holds the lock of a trial."""
    try:
        lock_trial(directory, fcntl.LOCK_NB).close()
    except (BlockingIOError, FileNotFoundError) as error:
        return isinstance(error, BlockingIOError)
    return False


def start_training(command: list[str], directory: Path, parameters: dict, lock: IO) -> subprocess.Popen:
    """Start the training of a trial, which inherits ``lock``."""
    chosen = [word for name, value in parameters.items() for word in (f"--{name}", str(value))]
    with (directory / LOG).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-u", *command, "--modelpath", str(directory), *chosen],
            stdout=log, stderr=subprocess.STDOUT, pass_fds=[lock.fileno()],
            preexec_fn=PRCTL and partial(stop_with_parent, os.getpid()),
        )  # fmt: skip


def stop_with_parent(parent: int) -> None:
    """Stop this process when its parent is killed, which alone records its result."""
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
