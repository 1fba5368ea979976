# SPDX-License-Identifier: BSD-3-Clause
"""Checks everything that a training needs: module, image, torch, hardware, network, caches, data set, Slurm, home.

It runs on login and compute nodes, on the host and in images, with any Python from 3.6 and its standard library.
"""

from collections import namedtuple
from functools import partial

OK, WARN, FAIL, NOT_APPLICABLE = "ok", "warn", "FAIL", "n.a."

#: The result of a check: OK, WARN, FAIL or NOT_APPLICABLE, the finding, the remedy, and the check's name.
Finding = namedtuple("Finding", "verdict finding remedy check")
Finding.__new__.__defaults__ = ("", "")  # what runs a check adds its name

ok = partial(Finding, OK)  # no fault was found
not_applicable = partial(Finding, NOT_APPLICABLE)  # there is nothing to check; the finding is why
warn = partial(Finding, WARN)  # training works, but with a fault
fail = partial(Finding, FAIL)  # training does not work
