"""Checks of what a training stands on; run by `pytorch-doctor`.

It runs on login and compute nodes, on the host and in images, with whatever Python is there: 3.6 or newer, the
standard library alone.
"""

from collections import namedtuple

OK, WARN, FAIL, NOT_APPLICABLE = "ok", "warn", "FAIL", "n.a."


class Finding(namedtuple("Finding", "check verdict finding remedy")):
    """What one check found: its name, OK, WARN, FAIL or NOT_APPLICABLE, a sentence, and what to do about it."""

    __slots__ = ()


def ok(check, finding):
    """All is well."""
    return Finding(check, OK, finding, "")


def not_applicable(check, finding):
    """There is nothing to check, for the reason that is given."""
    return Finding(check, NOT_APPLICABLE, finding, "")


def warn(check, finding, remedy):
    """Training works, but not as it should."""
    return Finding(check, WARN, finding, remedy)


def fail(check, finding, remedy):
    """Training does not work."""
    return Finding(check, FAIL, finding, remedy)
