"""A clock that the ranks of a test share: it moves only when the test moves it, however busy the machine is."""

import os
import time
from pathlib import Path


def size_of(path):
    return path.stat().st_size if path.exists() else 0


def append(path, count):
    with path.open("ab") as file:
        file.write(b"x" * count)


class SharedClock:
    """What modules use of `time`. A reading takes this rank a millisecond, and the others no time.

    A file has a byte for each millisecond, and a file of each rank one for each reading.
    """

    def __init__(self, directory):
        self.passed = Path(directory) / "milliseconds"
        self.readings = [Path(directory) / f"readings-{rank}" for rank in range(int(os.environ["WORLD_SIZE"]))]
        self.own = self.readings[int(os.environ["RANK"])]

    def perf_counter(self):
        now = (size_of(self.passed) + size_of(self.own)) / 1000
        append(self.own, 1)
        return now

    def pass_time(self, seconds, ahead=None):
        """Let time pass for all ranks: at once, or when each of the others has made `ahead` readings more than this."""
        deadline = time.monotonic() + 300
        others = [] if ahead is None else [path for path in self.readings if path != self.own]
        while any(size_of(path) < size_of(self.own) + ahead for path in others):
            assert time.monotonic() < deadline, "the other ranks make fewer readings"
            time.sleep(0.001)
        append(self.passed, round(1000 * seconds))
