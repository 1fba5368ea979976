"""Which ranks do not answer after a collective has failed; called by allreduce_check.py.

They answer by way of the store of the process group, which needs no other rank.
"""

from __future__ import annotations

import platform
import threading
import time

import torch.distributed as dist

LOOK_SECONDS = 0.1  # between two looks at who has answered


class RollCall:
    """Made once by each rank, inside the process group; ``missing`` is called by those whose collective failed.

    Such a failure reaches all ranks that wait at about the same time, when the time limit of the group is
    over. A rank that hangs, or has ended, does not call.
    """

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size
        self.store = dist.PrefixStore("roll call", dist.distributed_c10d._get_default_store())
        self.store.set(f"host {rank}", platform.node())

    def missing(self, seconds: float) -> list[str] | None:
        """Return the names of the ranks that do not answer within ``seconds``; None if the store does not."""
        absent: list[str] | None = None

        def call() -> None:
            nonlocal absent
            deadline = time.monotonic() + seconds
            self.store.set(f"here {self.rank}", "")
            silent = list(range(self.size))
            while silent and time.monotonic() < deadline:
                silent = [rank for rank in silent if not self.store.check([f"here {rank}"])]
                time.sleep(LOOK_SECONDS)
            absent = [f"{rank} ({self.host(rank)})" for rank in silent]

        # The store's own process, rank 0 or torchrun, may be what hangs.
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(seconds + 5)
        return absent

    def host(self, rank: int) -> str:
        return self.store.get(f"host {rank}").decode() if self.store.check([f"host {rank}"]) else "never began"
