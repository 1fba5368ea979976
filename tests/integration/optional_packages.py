"""Packages that some tests need, and are skipped without."""

import pytest

from testbed.packages import find_optional


def need(*packages):
    """Return the command or file of the first package; skip the test if one of them is not installed."""
    found = [find_optional(package) for package in packages]
    if None in found:
        missing = packages[found.index(None)]
        pytest.skip(f"{missing} is not installed: ./run-tests and `python3 testbed optional` install it where they may")
    return found[0]
