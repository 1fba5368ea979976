# SPDX-License-Identifier: BSD-3-Clause
"""The ranks of the check: their hosts, their neighbours, and waiting for a device."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from training.accelerator import library_of, module_of
from training.allreduce.nccl_log import last_warning
from training.distributed import World

PATIENCE = 0.9  # of the time limit, after which torch ends this process without naming the rank
MOST_NAMES = 8  # ranks in one line
WATCH_SECONDS = 0.5  # between two checks of a call that may not return


class Ranks:
    """The ranks of this run and their hosts; create it once, inside the process group.

    ``gather`` uses TCP between CPUs: with NCCL, the results do not depend on the network under test.
    """

    def __init__(self, world: World, timeout: float, read_log: Callable[[], str]):
        self.rank, self.size, self.device = world.rank, world.size, world.device
        self.timeout, self.read_log = timeout, read_log
        self._host_group = world.host_group
        self._calling_since: float | None = None
        self.hosts = self.gather(platform.node())
        self.nodes = list(dict.fromkeys(self.hosts))

    def gather(self, value):
        """Return the values of all ranks, in their order, on every rank; it waits for all of them."""
        values = [None] * self.size
        self._calling_since = None  # these connections have a time limit of their own
        dist.all_gather_object(values, value, group=self._host_group)
        self._calling_since = time.monotonic()
        return values

    @property
    def shape(self) -> tuple[int, int] | None:
        """Nodes and ranks per node; None if nodes have different numbers of ranks."""
        counts = {self.hosts.count(node) for node in self.nodes}
        return (len(self.nodes), counts.pop()) if len(counts) == 1 else None

    @property
    def ring(self) -> list[int]:
        """The ring of this rank: one rank per node, all with the same local index; on one node, all ranks."""
        return self.peers(self.rank) if len(self.nodes) > 1 else list(range(self.size))

    def peers(self, rank: int) -> list[int]:
        """Return the ranks with the local index of ``rank``, one per node; every node must have one."""
        members = [[other for other, host in enumerate(self.hosts) if host == node] for node in self.nodes]
        own = next(ranks for ranks in members if rank in ranks)
        return [ranks[own.index(rank)] for ranks in members]

    def name(self, ranks: Sequence[int]) -> str:
        """Return the names of ranks with their hosts, for a message; of many ranks, the first few."""
        names = [f"{rank} ({self.hosts[rank]})" for rank in ranks[:MOST_NAMES]]
        more = f" and {len(ranks) - MOST_NAMES} more" if len(ranks) > MOST_NAMES else ""
        return f"rank{'s' * (len(ranks) > 1)} {', '.join(names)}{more}"

    def wait_for_device(self) -> None:
        """Wait until the device has finished its work; end this process if a collective never ends."""
        if self.device.type == "cpu":
            return
        done = module_of(self.device).Event()
        done.record()
        self._calling_since = time.monotonic()
        deadline = self._calling_since + PATIENCE * self.timeout
        while not done.query():
            if time.monotonic() > deadline:
                self._end(f"a collective of {library_of(self.device)} did not end")
        self._calling_since = time.monotonic()

    @contextmanager
    def watch_calls(self) -> Iterator[None]:
        """End this process if a call of NCCL or XCCL does not return.

        The first collective of a group connects its ranks within the call, to which no time limit of torch applies.
        """
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(WATCH_SECONDS):
                since = self._calling_since
                if since is not None and time.monotonic() - since > PATIENCE * self.timeout:
                    self._end(f"a call of {library_of(self.device)} did not return")

        if self.device.type != "cpu":
            threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _end(self, fault: str) -> None:
        """End this process with a line that names this rank."""
        warning = last_warning(self.read_log())
        print(
            f"FAIL {self.name([self.rank])}: {fault} within {PATIENCE * self.timeout:g} s{warning}. "
            "Try without the nodes of ranks that do not report this",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)  # an orderly exit would wait for the device

    def new_group(self, members: Sequence[int], **options) -> dist.ProcessGroup:
        """Return a group of some of the ranks, with the time limit of this run."""
        return dist.new_group(members, timeout=timedelta(seconds=self.timeout), **options)
