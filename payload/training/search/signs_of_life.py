"""Which trials have a live process: each touches a file in its trial's directory again and again."""

from __future__ import annotations

import os
import time
from pathlib import Path

ALIVE = "alive"  # the file in the directory of a trial


class SignsOfLife:
    """The signs of life of the trials below ``directory``; a process is gone after ``takeover`` seconds without one."""

    def __init__(self, directory: Path, takeover: float):
        self.directory = directory
        self.takeover = takeover
        self.interval = min(10, takeover / 6)  # seconds between two signs
        self.silent = {}  # by trial: its last sign, and since when this process has seen no newer one

    def give(self, name: str) -> None:
        """Give a sign for the trial in the directory ``name``."""
        (self.directory / name / ALIVE).touch()

    def is_silent(self, name: str, now: float) -> bool:
        """Return whether the process of a trial is gone: no sign for long, and none while this process watches.

        If the clock of the file system jumps forward, all trials seem to have given no sign for long.
        """
        touched = last_touched(self.directory / name / ALIVE)
        if now - touched <= self.takeover:
            self.silent.pop(name, None)
            return False
        if self.silent.get(name, (None,))[0] != touched:
            self.silent[name] = touched, time.monotonic()
        return time.monotonic() - self.silent[name][1] > 3 * self.interval


def last_touched(path: Path) -> float:
    """Return the time of the last change; 0 if the file does not exist."""
    try:
        with path.open() as file:  # opened, because NFS then asks the server again
            return os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return 0
