# SPDX-License-Identifier: BSD-3-Clause
"""The ranks of the check: their hosts and neighbours, waiting for a device, and which do not answer after a failure."""

from __future__ import annotations

import os
import platform
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch.distributed as dist

from training.accelerator import library_of, module_of
from training.allreduce.nccl_log import last_warning
from training.distributed import World

PATIENCE = 0.9  # of the time limit, after which torch ends this process without naming the rank
MOST_NAMES = 8  # ranks in one line
WATCH_SECONDS = 0.5  # between two checks of a call that may not return
ANSWER_SECONDS = 10  # for a rank to answer after a collective failed; all waiting ranks fail at about the same time
STAY_SECONDS = 2  # rank 0, whose process may host the store, stays so long for ranks that asked later
CLOSE_SECONDS = 5  # limit for closing connections
POLL_SECONDS = 0.1  # between two polls for answers


def first_of(names: Sequence[str]) -> str:
    """Return names for a message; of many, the first few."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


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
        """Return the names of ranks with their hosts, for a message."""
        return f"rank{'s' * (len(ranks) > 1)} {first_of([f'{rank} ({self.hosts[rank]})' for rank in ranks])}"

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


class Answers:
    """Create it once on each rank, inside the process group; a rank whose collective failed calls ``missing``.

    Such a failure reaches all waiting ranks at about the same time: when the time limit of the group
    expires, or when the ranks that failed before have closed their connections. A rank that hangs or has
    ended does not call. ``add`` counts the answers, as it never blocks; torch before 2.3 has no ``check``.
    """

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size
        self.store = dist.PrefixStore("answers", dist.distributed_c10d._get_default_store())
        self.store.set(f"host {rank}", platform.node())
        self.store.add(f"began {rank}", 1)

    def missing(self, seconds: float) -> list[str] | None:
        """Return the names of the ranks that do not answer within ``seconds``; None if the store does not answer.

        If the process of the store ends meanwhile, these are the ranks that had not answered by then.
        """
        absent: list[str] | None = None

        def call() -> None:
            nonlocal absent
            deadline = time.monotonic() + seconds
            try:
                self.store.add(f"here {self.rank}", 1)
                silent = {rank: f"{rank} ({self.host(rank)})" for rank in range(self.size) if not self.is_here(rank)}
                absent = list(silent.values())
                while silent and time.monotonic() < deadline:
                    time.sleep(POLL_SECONDS)
                    silent = {rank: name for rank, name in silent.items() if not self.is_here(rank)}
                    absent = list(silent.values())
            except RuntimeError:
                return

        # The process that hangs may be that of the store: rank 0 or torchrun.
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(seconds + 5)
        return absent

    def is_here(self, rank: int) -> bool:
        return self.store.add(f"here {rank}", 0) > 0

    def host(self, rank: int) -> str:
        return self.store.get(f"host {rank}").decode() if self.store.add(f"began {rank}", 0) else "never began"


def end_with_names(answers: Answers, world: World, timeout: float, error: Exception) -> None:
    """End this process with a line that names the ranks that do not answer; return if all of them answer.

    The connections between CPUs are closed before, so that ranks that wait for this one also fail, and answer. NCCL's
    group stays open: closing it would wait for the other ranks.
    """
    traceback.clear_frames(error.__traceback__)  # the frames keep groups of some ranks alive
    close = threading.Thread(target=dist.destroy_process_group, args=(world.host_group,), daemon=True)
    close.start()
    close.join(CLOSE_SECONDS)
    missing = answers.missing(ANSWER_SECONDS)
    if missing != []:
        names = first_of(missing) if missing else "0, or the process that holds its store,"
        failed = "failed"
        if re.search("timed? ?out", str(error), re.IGNORECASE):
            failed = f"did not end within {timeout:g} s"
        fault = "it hangs or has ended"
        if missing and len(missing) > 1:
            fault = "one of them, or its node, is at fault"
        print(
            f"FAIL rank {names}: no answer, and a collective {failed}: {fault} "
            f"({str(error).splitlines()[0]}). Look at its processes and its log, and try without its node",
            file=sys.stderr,
            flush=True,
        )
    if answers.rank == 0:
        time.sleep(STAY_SECONDS)
    if missing != []:
        os._exit(1)  # an orderly exit may wait for that rank
