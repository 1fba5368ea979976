# SPDX-License-Identifier: BSD-3-Clause
"""The signals that stop a training, and their handlers until the training can save itself.

Call ``end_at_once`` before imports that take seconds, such as torch, and ``end_no_more`` before other handlers are set.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

# sysexits.h: "a failure that is temporary; the user is invited to retry". Job scripts requeue on this status.
STOPPED = os.EX_TEMPFAIL
INTERRUPTED = 128 + signal.SIGINT  # the status that a shell reports after Ctrl-C
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)

wakeup = -1  # the write end of a pipe to which Python's C code writes the number of each signal


def status_of(number: int) -> int:
    """Return the exit status of a run that a signal stopped."""
    return INTERRUPTED if number == signal.SIGINT else STOPPED


def end_at_once(*, resumable: bool = True) -> None:
    """From now on, Ctrl-C, and SIGUSR1 if ``resumable``, end this process with a line and the signal's status.

    SIGTERM keeps its default action: srun sends it to the other ranks when one has failed. If they exited
    with ``STOPPED``, a job script would requeue a failing run for ever. A Python handler runs only after the
    main thread returns from C++, such as from the rendezvous, so a thread reads the signals from a pipe:
    https://docs.python.org/3/library/signal.html#signal.set_wakeup_fd
    """
    global wakeup
    numbers = (signal.SIGINT, signal.SIGUSR1) if resumable else (signal.SIGINT,)

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
