# SPDX-License-Identifier: BSD-3-Clause
"""The signals that stop a training, and their handlers until the training can save itself.

Call ``end_at_once`` before imports that take seconds, such as torch, and ``end_no_more`` before other handlers are set.
``shield_processes`` protects the workers of a DataLoader from a signal to all processes of a job step.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess

# sysexits.h: "a failure that is temporary; the user is invited to retry". Job scripts requeue on this status.
STOPPED = os.EX_TEMPFAIL
INTERRUPTED = 128 + signal.SIGINT  # the status that a shell reports after Ctrl-C
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)

wakeup = -1  # the write end of a pipe to which Python's C code writes the number of each signal


def status_of(number: int) -> int:
    """Return the exit status of a run that a signal stopped."""
    if number == signal.SIGINT:
        return INTERRUPTED
    return STOPPED


def end_at_once(*, resumable: bool = True) -> None:
    """From now on, Ctrl-C, and SIGUSR1 if ``resumable``, end this process with a line and the signal's status.

    SIGTERM keeps its default action: srun sends it to the other ranks when one has failed. If they exited
    with ``STOPPED``, a job script would requeue a failing run for ever. A Python handler runs only after the
    main thread returns from C++, such as from the rendezvous, so a thread reads the signals from a pipe:
    https://docs.python.org/3/library/signal.html#signal.set_wakeup_fd
    """
    global wakeup
    numbers = [signal.SIGINT]
    if resumable:
        numbers.append(signal.SIGUSR1)

    def watch() -> None:
        while number := os.read(pipe, 1)[0]:
            if number in numbers:
                program = os.path.basename(sys.argv[0])  # noqa: PTH119
                os.write(2, f"{program}: {signal.Signals(number).name}: stopped, nothing was saved\n".encode())
                os._exit(status_of(number))

    for number in numbers:
        signal.signal(number, lambda *_: None)  # the thread ends the process
    pipe, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    threading.Thread(target=watch, daemon=True).start()


def end_no_more() -> None:
    """Stop the thread of ``end_at_once``; its handlers stay until others replace them."""
    global wakeup
    if wakeup >= 0:
        signal.set_wakeup_fd(-1)
        os.write(wakeup, b"\0")
        wakeup = -1


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
