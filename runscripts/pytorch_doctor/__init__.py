# SPDX-License-Identifier: BSD-3-Clause
"""Checks everything that a training needs: module, image, torch, hardware, network, caches, data set, Slurm, home.

It runs on login and compute nodes, on the host and in images, with any Python from 3.6 and its standard library.
"""

from collections import namedtuple

OK, WARN, FAIL, NOT_APPLICABLE = "ok", "warn", "FAIL", "n.a."

Finding = namedtuple("Finding", "verdict finding remedy check")
Finding.__doc__ = (
    "The result of a check: OK, WARN, FAIL or NOT_APPLICABLE, the finding, the remedy, and the check's name."
)


def ok(finding):
    """No fault was found."""
    return Finding(OK, finding, "", "")


def not_applicable(finding):
    """There is nothing to check; `finding` is why."""
    return Finding(NOT_APPLICABLE, finding, "", "")


def warn(finding, remedy):
    """Training works, but with a fault."""
    return Finding(WARN, finding, remedy, "")


def fail(finding, remedy):
    """Training does not work."""
    return Finding(FAIL, finding, remedy, "")
