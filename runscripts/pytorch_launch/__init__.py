# SPDX-License-Identifier: BSD-3-Clause
"""Decides what one rank needs before Python starts, and becomes Python.

environment and node facts (`facts`) -> world (`launchers`) -> `devices`, `cores`, `rendezvous`, `caches` -> `plan`;
`launch` applies the plan.

Every rank of a job pays for these modules at start-up, so they import as little as they can: each of `re`, `argparse`,
`pathlib` and `socket` costs more than all of them together.
"""

#: Exit statuses of the commands for errors before Python starts. `launch.bash` exits with the same.
USER_ERROR = 2
NO_PYTHON = 127  # as a shell does for a command that it does not find


class Problem:
    """What is wrong and where, the `fault`, and what to do, the `remedy`; as text they are one line."""

    def __init__(self, fault, remedy=""):
        self.fault = fault
        self.remedy = remedy

    def __str__(self):
        return f"{self.fault}. {self.remedy[:1].upper()}{self.remedy[1:]}" if self.remedy else self.fault


class LaunchError(Problem, Exception):
    """A Problem that prevents the launch.

    `status` is the exit status of the command. Of several ranks that find the same Problem, that with `rank` 0
    reports it.
    """

    status = USER_ERROR
    rank = 0


#: Slurm's numbers have 64 bits, and int() fails for thousands of digits.
MOST_DIGITS = 18


def is_number(text):
    """Whether `text` is a number from 0 that fits into 64 bits."""
    return text.isdecimal() and len(text) <= MOST_DIGITS
