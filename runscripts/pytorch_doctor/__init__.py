# SPDX-License-Identifier: BSD-3-Clause
"""Checks everything that a training needs: module, image, torch, hardware, network, caches, data set, Slurm, home.

It runs on login and compute nodes, on the host and in images, with any Python from 3.6 and its standard library.
"""

from collections import namedtuple

OK, WARN, FAIL, NOT_APPLICABLE = "ok", "warn", "FAIL", "n.a."


class Finding(namedtuple("Finding", "check verdict finding remedy")):
    """The result of one check: its name, OK, WARN, FAIL or NOT_APPLICABLE, the finding, and the remedy."""

    __slots__ = ()


def ok(check, finding):
    """No fault was found."""
    return Finding(check, OK, finding, "")


def not_applicable(check, finding):
    """There is nothing to check; `finding` is why."""
    return Finding(check, NOT_APPLICABLE, finding, "")


def warn(check, finding, remedy):
    """Training works, but with a fault."""
    return Finding(check, WARN, finding, remedy)


def fail(check, finding, remedy):
    """Training does not work."""
    return Finding(check, FAIL, finding, remedy)
