# SPDX-License-Identifier: BSD-3-Clause
"""The signals that stop a training, and their handlers until the training can save itself.

Call ``end_at_once`` before imports that take seconds, such as torch; its handlers stay until others replace them.
``shield_processes`` protects the workers of a DataLoader from a signal to all processes of a job step.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess

# sysexits.h: "a failure that is temporary; the user is invited to retry". Job scripts requeue on this status.
STOPPED = os.EX_TEMPFAIL
INTERRUPTED = 128 + signal.SIGINT  # the status that a shell reports after Ctrl-C
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


def status_of(number: int) -> int:
    """Return the exit status of a run that a signal stopped."""
    if number == signal.SIGINT:
        return INTERRUPTED
    return STOPPED


def end_at_once(*, resumable: bool = True) -> None:
    """From now on, Ctrl-C, and SIGUSR1 if ``resumable``, end this process with a line and the signal's status.

    SIGTERM keeps its default action: srun sends it to the other ranks when one has failed. If they exited
    with ``STOPPED``, a job script would requeue a failing run for ever.
    """
    signal.signal(signal.SIGINT, end)
    if resumable:
        signal.signal(signal.SIGUSR1, end)


def end(number: int, _frame: object) -> None:
    """Handle a signal that arrives before anything can be saved."""
    program = os.path.basename(sys.argv[0])  # noqa: PTH119
    os.write(2, f"{program}: {signal.Signals(number).name}: stopped, nothing was saved\n".encode())
    os._exit(status_of(number))


@contextmanager
def blocked_signals() -> Iterator[None]:
    """Block ``SIGNALS`` in this thread; a process that starts in the ``with`` block inherits this, and keeps it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def shield_processes() -> Iterator[None]:
    """Block ``SIGNALS`` in the processes that multiprocessing starts in the ``with`` block, by any start method.

    Slurm signals all processes of a step. A worker of a DataLoader that ends by a signal ends the training with an
    error: torch's own handler of SIGTERM in workers does, and the default action of SIGUSR1. ``terminate()`` of such a
    process sends SIGKILL, as SIGTERM is blocked there: a DataLoader, and Python's exit, end stuck workers by it.
    Processes of ``subprocess`` are not changed.
    """
    start = BaseProcess.start

    def start_shielded(process: BaseProcess) -> None:
        with blocked_signals():
            start(process)
        process._popen.terminate = process._popen.kill  # type: ignore[attr-defined]

    with blocked_signals():
        # SIGUSR1 would end it. It starts before any worker, as its start unblocks signals before Python 3.13.
        resource_tracker.ensure_running()
    BaseProcess.start = start_shielded  # type: ignore[assignment]
    try:
        yield
    finally:
        BaseProcess.start = start  # type: ignore[method-assign]
