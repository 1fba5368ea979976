"""The signals that ask a training to stop, and what they do before it can; imports nothing that takes time.

mnist_ddp.py and search.py call ``end_at_once`` before they import torch and Optuna, which takes seconds;
``StopSignals`` and search.py take over, with ``end_no_more`` first.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

# sysexits.h: "a failure that is temporary; the user is invited to retry". A job script requeues then.
STOPPED = os.EX_TEMPFAIL
INTERRUPTED = 128 + signal.SIGINT  # what a shell calls the end by Ctrl-C
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)

wakeup = -1  # the end of a pipe into which Python's C code writes the number of each signal


def status_of(number: int) -> int:
    """Return the exit status of a run that a signal stopped."""
    return INTERRUPTED if number == signal.SIGINT else STOPPED


def end_at_once(*, resumable: bool = True) -> None:
    """From here on let Ctrl-C, and SIGUSR1 if ``resumable``, end this process with a line and its status.

    SIGTERM keeps its default: srun sends it to the other ranks when one has failed, and a job script would
    start a run again and again that ends with ``STOPPED`` then. A handler in Python runs only when the main thread
    returns from C++, such as from the rendezvous; a thread reads the signals from a pipe meanwhile:
    https://docs.python.org/3/library/signal.html#signal.set_wakeup_fd
    """
    global wakeup
    once = threading.Lock()
    numbers = (signal.SIGINT, signal.SIGUSR1) if resumable else (signal.SIGINT,)

    def end(number: int, _frame=None) -> None:
        if not once.acquire(blocking=False):
            return  # the other thread ends this process already
        line = f"{os.path.basename(sys.argv[0])}: {signal.Signals(number).name}: stopped, nothing was saved\n"  # noqa: PTH119
        os.write(2, line.encode())
        os._exit(status_of(number))

    def watch() -> None:
        while number := os.read(pipe, 1)[0]:
            if number in numbers:
                end(number)

    for number in numbers:
        signal.signal(number, end)
    pipe, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    threading.Thread(target=watch, daemon=True).start()


def end_no_more() -> None:
    """End the thread of ``end_at_once``; its handlers stay until others replace them."""
    global wakeup
    if wakeup >= 0:
        signal.set_wakeup_fd(-1)
        os.write(wakeup, b"\0")
        wakeup = -1
