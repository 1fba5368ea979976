# SPDX-License-Identifier: BSD-3-Clause
"""Decides what one rank needs before Python starts, and becomes Python.

environment and node (`topology`) -> world (`launchers`) -> `devices`, `cores`, `rendezvous`, `caches` -> `plan`;
`launch` applies the plan.

Every rank of a job pays for these modules at start-up, so they import as little as they can. Of the 28 million
instructions of a bare Python (3.11), `os` in place of `posix` costs 21 %, `signal` in place of `_signal` 70 %, `socket`
in place of `_socket` 120 %, and each of `re`, `argparse`, `pathlib`, `dataclasses` more than all of this package.
"""

import posix as os  # see above

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
    """A Problem that prevents the launch; `status` is the exit status of the command.

    Of several ranks that find the same Problem, that with `rank` 0 reports it.
    """

    def __init__(self, fault, remedy="", *, rank=0, status=USER_ERROR):
        super().__init__(fault, remedy)
        self.rank, self.status = rank, status


#: Slurm's numbers have 64 bits, and int() fails for thousands of digits.
MOST_DIGITS = 18


def is_number(text):
    """Whether `text` is a number from 0 that fits into 64 bits."""
    return text.isdecimal() and len(text) <= MOST_DIGITS


def is_on(env, name, default):
    """Whether the switch `name`, 1 or 0, is on. Raises LaunchError for another value, such as `false`."""
    value = env.get(name) or default
    if value not in ("0", "1"):
        raise LaunchError(f"{name}={value} is neither 0 nor 1", "Correct or unset it")
    return value == "1"


class Value:
    """An immutable record. Its fields are passed by name; those in `DEFAULTS` can be left out."""

    DEFAULTS: dict = {}

    def __init__(self, **fields):
        self.__dict__.update({**self.DEFAULTS, **fields})

    def __setattr__(self, name, value):
        raise AttributeError(f"{type(self).__name__} is immutable: use `replace` to change {name}")

    def replace(self, **fields):
        return type(self)(**{**self.__dict__, **fields})


def read(path):
    """The text of a file without the white space around it, None if it cannot be read."""
    parts = []
    try:
        # open() would cost several times as much as the reading itself
        file = os.open(path, os.O_RDONLY)
        try:
            while not parts or parts[-1]:  # read(2) returns a page or so of a file of /proc
                parts.append(os.read(file, 65536))
        finally:
            os.close(file)
    except OSError:
        return None
    return b"".join(parts).decode(errors="replace").strip()


def exists(path):
    try:
        os.stat(path)
    except (OSError, ValueError):  # ValueError: a zero byte in the name
        return False
    return True


def names(directory):
    try:
        return os.listdir(directory)
    except OSError:
        return []


def process(pid):
    """The name of a process, its state, as `R`, and the number of its parent; "" for what cannot be read.

    (proc_pid_stat(5); the kernel shortens the name.)
    """
    name, _, fields = (read(f"/proc/{pid}/stat") or "").partition("(")[2].rpartition(")")
    return (name, *(fields.split() + ["", ""])[:2])


def ancestors():
    """The numbers and names of the processes above this one, its parent first."""
    pid = process("self")[2]
    while pid not in ("", "0"):
        name, _, parent = process(pid)
        yield pid, name
        pid = parent
