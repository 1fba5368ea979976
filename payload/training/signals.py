"""The signals that ask a training to stop, and what they do before it can; imports nothing that takes time.

mnist_ddp.py and search.py call ``end_at_once`` before they import torch and Optuna, which takes seconds;
``StopSignals`` takes over.
"""

from __future__ import annotations

import os
import signal
import sys

# sysexits.h: "a failure that is temporary; the user is invited to retry". A job script requeues then.
STOPPED = os.EX_TEMPFAIL
INTERRUPTED = 128 + signal.SIGINT  # what a shell calls the end by Ctrl-C
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


def status_of(number: int) -> int:
    """Return the exit status of a run that a signal stopped."""
    return INTERRUPTED if number == signal.SIGINT else STOPPED


def end_at_once(*, resumable: bool = True) -> None:
    """From here on let Ctrl-C, and SIGUSR1 if ``resumable``, end this process with a line and its status.

    SIGTERM keeps its default: srun sends it to the other ranks when one has failed, and a job script would
    start a run again and again that ends with ``STOPPED`` then.
    """

    def end(number: int, _frame) -> None:
        line = f"{os.path.basename(sys.argv[0])}: {signal.Signals(number).name}: stopped, nothing was saved\n"  # noqa: PTH119
        os.write(2, line.encode())
        os._exit(status_of(number))

    signal.signal(signal.SIGINT, end)
    if resumable:
        signal.signal(signal.SIGUSR1, end)
