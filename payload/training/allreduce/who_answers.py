"""Finds the ranks that do not answer after a collective has failed, through the store of the process group."""

from __future__ import annotations

import platform
import threading
import time

import torch.distributed as dist

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
