"""The training of one trial: its command, its process and its result."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

from training import TrainingError
from training.metrics import METRICS_FILE, finite_number, read_objects

PRCTL = getattr(ctypes.CDLL(None), "prctl", None)  # Linux alone has it
PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def trial_command(command: list[str], directory: Path, parameters: dict) -> list[str]:
    """Return the command that trains with ``parameters`` in ``directory``."""
    chosen = [word for name, value in parameters.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-u", *command, "--modelpath", str(directory), *chosen]


def stop_with_parent(parent: int) -> None:
    """Have this process stopped when its parent is killed: who takes over has the directory alone."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    PRCTL(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # killed before that
        os._exit(os.EX_TEMPFAIL)


def last_value(metrics_file: Path, metric: str) -> float:
    """Return the metric of the last epoch; TrainingError where there is none or it is not a finite number."""
    epochs = read_objects(metrics_file)
    if not epochs or metric not in epochs[-1]:
        raise TrainingError(f"no {metric} in {METRICS_FILE}")
    value = finite_number(epochs[-1][metric])
    if value is None:
        raise TrainingError(f"{metric} in {METRICS_FILE} is {repr(epochs[-1][metric])[:40]}, not a finite number")
    return value


def last_touched(path: Path) -> float:
    """Return the time of the last change; 0 where there is no such file."""
    try:
        with path.open() as file:  # NFS asks the server again for a file that is opened
            return os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return 0
