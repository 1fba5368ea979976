"""Stopping between two steps when Slurm asks for it: before the time limit or a preemption.

mnist_ddp.py trains inside ``StopSignals``, and ends with its ``status`` when the ranks agreed to stop.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress

import torch
import torch.distributed as dist

from training.distributed import World
from training.signals import INTERRUPTED, SIGNALS, STOPPED, end_no_more, status_of

AGAIN_SECONDS = 1  # after which another Ctrl-C is one more, and not the same by way of the launcher


class StopSignals:
    """Notes SIGTERM, SIGUSR1 and Ctrl-C for the length of a ``with`` block, and finds what the ranks agree on.

    A signal may reach one rank before another, or one alone, and a rank that left by itself would
    let the others wait. So they ask each other, at every ``interval``-th call of ``agreed``,
    through the hosts' memory: nobody waits for a GPU. A block that ends with ``STOPPED`` or
    ``INTERRUPTED`` ends on all ranks at once. After a block without a fault the signals are ignored: what
    is done need not be stopped. A second Ctrl-C is a KeyboardInterrupt. If not ``enabled``, signals
    do what they always do, as they should where nothing can be saved.
    """

    def __init__(self, world: World, *, interval: int = 16, enabled: bool = True):
        self.world = world
        self.signals = SIGNALS if enabled else ()
        self.interval = interval
        self.calls = 0
        self.received = 0  # the number of the signal; 0: none
        self.interrupted = 0.0  # when Ctrl-C came first

    def __enter__(self) -> StopSignals:
        if self.signals:
            end_no_more()
        self.previous = {number: signal.signal(number, self.note) for number in self.signals}
        return self

    def note(self, number: int, frame) -> None:
        if number == signal.SIGINT:
            now = time.monotonic()
            if self.interrupted and now - self.interrupted > AGAIN_SECONDS:
                signal.default_int_handler(number, frame)
            self.interrupted = self.interrupted or now
        self.received = number

    def agreed(self, *, now: bool = False) -> bool:
        """Return whether the ranks are to stop here: the same answer on all, who all must call it.

        ``now`` asks at once, whatever the interval.
        """
        self.calls += 1
        if not self.signals or not now and self.calls % self.interval:
            return False
        received = torch.tensor(self.received)
        dist.all_reduce(received, op=dist.ReduceOp.MAX, group=self.world.host_group)
        self.received = int(received)
        if self.received:
            # srun may end the other ranks as soon as the first has ended (SLURM_KILL_BAD_EXIT);
            # they are about to end by themselves, with the status that says why.
            for number in self.signals:
                signal.signal(number, signal.SIG_IGN)
        return self.received > 0

    @property
    def name(self) -> str:
        """The name of the signal that was agreed on, such as SIGTERM."""
        return signal.Signals(self.received).name

    @property
    def status(self) -> int:
        """The exit status that says so: ``STOPPED``, or ``INTERRUPTED`` after Ctrl-C."""
        return status_of(self.received)

    def __exit__(self, _kind: object, fault: BaseException | None, _traceback: object) -> None:
        if self.signals and isinstance(fault, SystemExit) and fault.code in (STOPPED, INTERRUPTED):
            # srun kills the others some time after the first has ended (KillWait), and the status
            # would be 137. Rank 0 may have something to bring to an end, such as a report.
            with suppress(RuntimeError):  # another rank died: its status says so
                dist.barrier(group=self.world.host_group)
        for number, handler in self.previous.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_IGN if fault is None else handler)
