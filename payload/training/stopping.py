# SPDX-License-Identifier: BSD-3-Clause
"""Stops a training between two steps, on all ranks at once, when a signal arrives."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NoReturn

import torch
import torch.distributed as dist

from training.distributed import World
from training.signals import INTERRUPTED, SIGNALS, STOPPED, end, shield_processes, status_of

AGAIN_SECONDS = 1  # an earlier repetition of Ctrl-C is the same one, forwarded by the launcher


class StopSignals:
    """Records SIGTERM, SIGUSR1 and Ctrl-C during a ``with`` block, and lets the ranks agree to stop.

    A signal may reach only some ranks, or reach them at different times, and a rank that stopped alone would leave the
    others waiting. So at every ``interval``-th call of ``agreed`` the ranks exchange what they received, in host
    memory, without waiting for a GPU. A block that exits with ``STOPPED`` or ``INTERRUPTED`` ends on all ranks at the
    same time. After a block that succeeds, the signals are ignored: nothing is left to stop. A second Ctrl-C ends the
    process at once. Processes that multiprocessing starts in the block, such as the workers of a DataLoader, do not
    receive the signals. If not ``enabled``, signals keep their handlers: use this if nothing can be saved.
    """

    def __init__(self, world: World, *, interval: int = 16, enabled: bool = True):
        self.world = world
        self.signals = SIGNALS if enabled else ()
        self.interval = interval
        self.calls = 0
        self.noted = 0  # the number of the signal that this rank received; 0: none
        self.received = 0  # the number of the signal that the ranks agreed on
        self.interrupted = 0.0  # time of the first Ctrl-C
        self.shield = ExitStack()

    def __enter__(self) -> StopSignals:
        if self.signals:
            self.shield.enter_context(shield_processes())
        self.previous = {number: signal.signal(number, self.note) for number in self.signals}
        return self

    def note(self, number: int, frame) -> None:
        if number == signal.SIGINT:
            now = time.monotonic()
            if self.interrupted and now - self.interrupted > AGAIN_SECONDS:
                end(number, frame)
            self.interrupted = self.interrupted or now
        self.noted = number

    def agreed(self, *, now: bool = False) -> bool:
        """Return whether to stop here: the same answer on all ranks, all of which must call it.

        With ``now`` the ranks exchange signals regardless of the interval.
        """
        self.calls += 1
        is_due = now or self.calls % self.interval == 0
        if not self.signals or not is_due:
            return False
        received = torch.tensor(self.noted)  # a signal that arrives from here on counts next time
        dist.all_reduce(received, op=dist.ReduceOp.MAX, group=self.world.host_group)
        self.received = int(received)
        if self.received:
            # A launcher may terminate the other ranks as soon as the first has ended.
            # Ignored, that does not change the status with which they are about to exit.
            for number in self.signals:
                signal.signal(number, signal.SIG_IGN)
        return self.received > 0

    @property
    def status(self) -> int:
        """The exit status of a run that was stopped: ``STOPPED``, or ``INTERRUPTED`` after Ctrl-C."""
        return status_of(self.received)

    def leave(self, report: Callable[[str], None], done: str, file: str | None) -> NoReturn:
        """Report what is ``done``, and the checkpoint in ``file``, and exit with ``status``."""
        name = signal.Signals(self.received).name
        report(f"{name}: stopped after {done}, saved in {file}. Run the same command again to resume")
        raise SystemExit(self.status)

    def __exit__(self, _kind: object, fault: BaseException | None, _traceback: object) -> None:
        self.shield.close()
        if self.signals and isinstance(fault, SystemExit) and fault.code in (STOPPED, INTERRUPTED):
            # srun kills the others some time after the first has ended (KillWait), and the status
            # would be 137. Rank 0 may still have to finish, for example, a report.
            with suppress(RuntimeError):  # another rank died, and its status reports it
                dist.barrier(group=self.world.host_group)
        for number, handler in self.previous.items():
            if signal.getsignal(number) is signal.SIG_IGN:
                continue
            if fault is None:
                handler = signal.SIG_IGN
            signal.signal(number, handler)
