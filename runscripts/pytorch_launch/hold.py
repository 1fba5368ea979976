# SPDX-License-Identifier: BSD-3-Clause
"""Holds the port where ranks meet: claims it, and checks that no program listens there."""

from pytorch_launch.claim import UNKNOWN, take_claim
from pytorch_launch.ports import is_free
from pytorch_launch.rendezvous import RendezvousError

START_AGAIN = "start again, or export another MASTER_PORT for this launch"
NOT_A_RANK = "use conda-python-simple for a program that is not a rank, or export another MASTER_PORT"


def hold_port(claim):
    """Make `claim`; raise RendezvousError if another launch has the port, or a process listens on it on rank 0's node.

    For every rank there, before it starts Python: of two launches with the same port, the ranks of one would
    join the other. Rank 0 would fail in Python as well if another process listens, but the other ranks would connect
    to that process and wait for it. A program without a claim can still bind the port between this and torch.
    """
    holder = take_claim(claim.port, claim.launch, is_rank_0=claim.rank == 0)
    if holder is not None:
        name = {claim.launch: "another rank 0 of this launch", UNKNOWN: "another launch"}.get(
            holder.launch, holder.launch
        )
        # the first is a second program of rank 0's task, which would fail again if started again
        remedy = NOT_A_RANK if holder.launch == claim.launch else START_AGAIN
        raise _in_use(claim, name + (holder.pid and f" (process {holder.pid})"), remedy)
    if claim.rank == 0 and not is_free(claim.port):
        raise _in_use(claim, "another program, or by one that started this", START_AGAIN)


def _in_use(claim, holder, remedy):
    place = f"port {claim.port} on {claim.address}, the rendezvous of {claim.source}"
    return RendezvousError(f"{place}, is in use by {holder}", remedy, rank=claim.rank)
