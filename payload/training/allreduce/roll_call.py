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
    over or the ranks that failed before have closed their connections. A rank that hangs, or has ended, does not
    call. Ranks are counted by ``add``, which never waits: torch before 2.3 has no ``check``.
    """

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size
        self.store = dist.PrefixStore("roll call", dist.distributed_c10d._get_default_store())
        self.store.set(f"host {rank}", platform.node())
        self.store.add(f"began {rank}", 1)

    def missing(self, seconds: float) -> list[str] | None:
        """Return the names of the ranks that do not answer within ``seconds``; None if the store does not.

        If the store's process ends meanwhile, they are those that had not answered until then.
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
                    time.sleep(LOOK_SECONDS)
                    silent = {rank: name for rank, name in silent.items() if not self.is_here(rank)}
                    absent = list(silent.values())
            except RuntimeError:
                return

        # The store's own process, rank 0 or torchrun, may be what hangs.
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(seconds + 5)
        return absent

    def is_here(self, rank: int) -> bool:
        return self.store.add(f"here {rank}", 0) > 0

    def host(self, rank: int) -> str:
        return self.store.get(f"host {rank}").decode() if self.store.add(f"began {rank}", 0) else "never began"
