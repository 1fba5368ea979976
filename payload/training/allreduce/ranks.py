"""The ranks of a check: where each runs, and how each waits for its device."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from training.allreduce.nccl_log import last_warning
from training.distributed import World

MOST_NAMES = 8  # of ranks in one line
PATIENCE = 0.9  # of the time limit, as at its end torch ends this process without a word on the rank


class Ranks:
    """The ranks of this run as the check needs them; made once, inside the process group.

    ``gather`` goes by TCP between CPUs: with NCCL, the network that is under test does not carry the verdict.
    """

    def __init__(self, world: World, timeout: float, read_log: Callable[[], str]):
        self.rank, self.size, self.device = world.rank, world.size, world.device
        self.timeout, self.read_log = timeout, read_log
        self._hosts_group = world.host_group
        self.hosts = self.gather(platform.node())
        self.nodes = list(dict.fromkeys(self.hosts))

    def gather(self, value):
        """Return the values of all ranks, in their order, on each of them; it waits for all."""
        values = [None] * self.size
        dist.all_gather_object(values, value, group=self._hosts_group)
        return values

    @property
    def shape(self) -> tuple[int, int] | None:
        """Nodes and ranks per node; None where the nodes differ."""
        counts = {self.hosts.count(node) for node in self.nodes}
        return (len(self.nodes), counts.pop()) if len(counts) == 1 else None

    @property
    def ring(self) -> list[int]:
        """The ranks in a ring with this one: those at its place on each node; on one node all."""
        return self.peers(self.rank) if len(self.nodes) > 1 else list(range(self.size))

    def peers(self, rank: int) -> list[int]:
        """Return the ranks at the place of ``rank`` on each node, of which none may be missing."""
        members = [[other for other, host in enumerate(self.hosts) if host == node] for node in self.nodes]
        own = next(ranks for ranks in members if rank in ranks)
        return [ranks[own.index(rank)] for ranks in members]

    def name(self, ranks: Sequence[int]) -> str:
        """Name some of the ranks, with their hosts, for people."""
        names = [f"{rank} ({self.hosts[rank]})" for rank in ranks[:MOST_NAMES]]
        more = f" and {len(ranks) - MOST_NAMES} more" if len(ranks) > MOST_NAMES else ""
        return f"rank{'s' * (len(ranks) > 1)} {', '.join(names)}{more}"

    def wait_for_device(self) -> None:
        """Wait until the device has done what it was given; end this process where a collective never ends."""
        if self.device.type != "cuda":
            return
        done = torch.cuda.Event()
        done.record()
        deadline = time.monotonic() + PATIENCE * self.timeout
        while not done.query():
            if time.monotonic() > deadline:
                warning = last_warning(self.read_log())
                print(
                    f"FAIL {self.name([self.rank])}: a collective of NCCL did not end within "
                    f"{PATIENCE * self.timeout:g} s{warning}; see which ranks do not say this, try without their nodes",
                    file=sys.stderr, flush=True,
                )  # fmt: skip
                os._exit(1)  # anything else would wait for the device

    def new_group(self, members: Sequence[int], **options) -> dist.ProcessGroup:
        """Make a group of some of the ranks, with the time limit of this run."""
        return dist.new_group(members, timeout=timedelta(seconds=self.timeout), **options)
