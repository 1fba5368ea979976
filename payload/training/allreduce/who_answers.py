# SPDX-License-Identifier: BSD-3-Clause
"""Finds and names the ranks that do not answer after a collective has failed, and ends the check."""

from __future__ import annotations

import os
import platform
import re
import sys
import threading
import time
import traceback

import torch.distributed as dist

from training.allreduce.ranks import MOST_NAMES
from training.distributed import World

ANSWER_SECONDS = 10  # for a rank to answer after a collective failed; all waiting ranks fail at about the same time
STAY_SECONDS = 2  # rank 0, whose process may host the store, stays so long for ranks that asked later
CLOSE_SECONDS = 5  # limit for closing connections
POLL_SECONDS = 0.1  # between two polls for answers


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


def close_connections(world: World, error: Exception) -> None:
    """Close the connections between CPUs, so that ranks that wait for this one also fail, and answer.

    NCCL's group stays open: closing it would wait for the other ranks.
    """
    traceback.clear_frames(error.__traceback__)  # the frames keep groups of some ranks alive
    close = threading.Thread(target=dist.destroy_process_group, args=(world.host_group,), daemon=True)
    close.start()
    close.join(CLOSE_SECONDS)


def end_with_names(answers: Answers, timeout: float, error: Exception) -> None:
    """End this process with a line that names the ranks that do not answer; return if all of them answer."""
    missing = answers.missing(ANSWER_SECONDS)
    if missing == []:
        if answers.rank == 0:
            time.sleep(STAY_SECONDS)
        return
    names = ", ".join(missing[:MOST_NAMES]) if missing else "0, or the process that holds its store,"
    more = f" and {len(missing) - MOST_NAMES} more" if missing and len(missing) > MOST_NAMES else ""
    timed_out = re.search("timed? ?out", str(error), re.IGNORECASE)
    failed = f"did not end within {timeout:g} s" if timed_out else "failed"
    several = missing is not None and len(missing) > 1
    fault = "one of them, or its node, is at fault" if several else "it hangs or has ended"
    print(
        f"FAIL rank {names}{more}: no answer, and a collective {failed}: {fault} "
        f"({str(error).splitlines()[0]}). Look at its processes and its log, and try without its node",
        file=sys.stderr,
        flush=True,
    )
    if answers.rank == 0:
        time.sleep(STAY_SECONDS)
    os._exit(1)  # an orderly exit may wait for that rank
