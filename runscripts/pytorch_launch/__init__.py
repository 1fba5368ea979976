# SPDX-License-Identifier: BSD-3-Clause
"""Decides what one rank needs before Python starts, and becomes Python.

world         who started this process, and which rank it is: `launchers`
place         where the ranks meet: `rendezvous`, `claim`, `fabric`
hardware      which GPU and which cores are this rank's: `topology`, `devices`, `cores`
environment   which Python runs, and what it sees: `active`, `container`, `caches`

`plan` calls them in this order; `launch` applies the plan and becomes Python; `report` prints.

Every rank of a job pays for these modules at start-up. So `re`, `socket` and `signal` are imported in the functions
that need them, and `argparse`, `subprocess`, `dataclasses`, `typing` and `json` nowhere. Values are Records.
"""

import os
from _operator import itemgetter

#: Exit statuses of the commands for errors before Python starts. `launch.bash` exits with the same.
USER_ERROR = 2
NO_PYTHON = 127  # as a shell does for a command that it does not find

#: Slurm's numbers have 64 bits, and int() fails for thousands of digits.
MOST_DIGITS = 18


#: Each control character, of the blocks C0 and C1 of Unicode or DEL, and how it is printed. Bytes of C1 that are not
#: valid UTF-8 are there as "surrogates" (PEP 383).
CONTROL = {code: f"\\x{code & 0xFF:02x}" for code in [*range(32), *range(127, 160), *range(0xDC80, 0xDCA0)]}


class Record(tuple):
    """A named tuple. namedtuple() executes code that it makes for each: a tenth of what a start costs.

    A subclass has `fields`, their names, and `defaults`, the values of those that can be omitted.
    """

    fields = ""
    defaults: dict = {}  # noqa: RUF012  (it never changes)

    def __init_subclass__(cls):
        for position, field in enumerate(cls.fields.split()):
            setattr(cls, field, property(itemgetter(position)))

    def __new__(cls, *values, **named):
        fields = cls.fields.split()
        if values:
            named.update(zip(fields, values))
        found = {**cls.defaults, **named}
        if len(values) > len(fields) or set(found) != set(fields):
            raise TypeError(f"{cls.__name__} has the fields {cls.fields}")
        return super().__new__(cls, [found[field] for field in fields])

    def _replace(self, **named):
        """The same with other values of these fields."""
        return type(self)(**{**dict(zip(self.fields.split(), self)), **named})


class Problem:
    """What is wrong and where, the `fault`, and what to do, the `remedy`; as text they are one line."""

    def __init__(self, fault, remedy=""):
        self.fault = fault
        self.remedy = remedy

    def __str__(self):
        if not self.remedy:
            return self.fault
        return f"{self.fault}. {self.remedy[:1].upper()}{self.remedy[1:]}"


class LaunchError(Problem, Exception):
    """A Problem that prevents the launch; `status` is the exit status of the command.

    Of several ranks that find the same Problem, that with `rank` 0 reports it.
    """

    def __init__(self, fault, remedy="", *, rank=0, status=USER_ERROR):
        super().__init__(fault, remedy)
        self.rank = rank
        self.status = status


def printable(text):
    """`text` with its control characters, such as a terminal's escape sequences, as `\\x1b`: for messages."""
    return text.translate(CONTROL)


def is_number(text):
    """Whether `text` is a number from 0 that fits into 64 bits."""
    return text.isdecimal() and len(text) <= MOST_DIGITS


def is_on(env, name, default):
    """Whether the switch `name`, 1 or 0, is on. Raises LaunchError for another value, such as `false`."""
    value = env.get(name) or default
    if value not in ("0", "1"):
        raise LaunchError(f"{name}={value} is neither 0 nor 1", "Correct or unset it")
    return value == "1"


def read(path):
    """The text of a file without the white space around it, None if it cannot be read."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123  (pathlib costs more than this package)
            return file.read().decode(errors="replace").strip()
    except (OSError, ValueError):  # ValueError: a zero byte in the name
        return None


exists = os.path.exists


def names(directory):
    """The names in a directory, none if it cannot be read."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


class Process(Record):
    fields = "name state parent"


def process(pid):
    """The name of a process, which the kernel shortens, its state, as `R`, and the number of its parent.

    Each is "" where it cannot be read (proc_pid_stat(5)).
    """
    name, _, fields = (read(f"/proc/{pid}/stat") or "").partition("(")[2].rpartition(")")
    state, parent = (fields.split() + ["", ""])[:2]
    return Process(name, state, parent)


def ancestors():
    """The numbers and names of the processes above this one, its parent first."""
    pid = process("self").parent
    while pid not in ("", "0"):
        above = process(pid)
        yield pid, above.name
        pid = above.parent
