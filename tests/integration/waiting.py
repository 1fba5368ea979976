"""Waits for what takes a moment, longer on a busy machine."""

import time


def wait_for(condition, seconds=600, report=lambda: None):
    """Wait until a function returns true; after a limit, fail with what `report` returns."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, report()
        time.sleep(0.1)


def left_after(seconds, find):
    """Return what a function finds: nothing as soon as it finds nothing, otherwise what is left after a limit."""
    deadline = time.monotonic() + seconds
    while (found := sorted(find())) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
