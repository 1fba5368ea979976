# SPDX-License-Identifier: BSD-3-Clause
"""Finds the script in Python's arguments, so that a wrong path causes one line per node, not a traceback per rank."""

import posix as os

# Options of python(1) without a script after them: code, a module, or a text that Python prints.
NO_SCRIPT = ("c", "m", "h", "V", "?")
# Options with a value, attached or as the next argument.
TAKES_VALUE = ("W", "X")


def script_path(arguments):
    """The path of the script in the arguments of Python, `-` for standard input, None for code or a module."""
    words = iter(arguments)
    for word in words:
        if word == "-" or not word.startswith("-"):
            return word
        if word == "--":
            return next(words, "-")
        if word == "--check-hash-based-pycs":
            next(words, None)
            continue
        option, value = _option_with_value(word)
        if word.startswith("--") or option in NO_SCRIPT:
            return None
        if option in TAKES_VALUE and not value:
            next(words, None)
    return "-"


def gets_no_input(world):
    """Whether the launcher keeps this rank's standard input empty: Open MPI, PALS and MPICH pass theirs to rank 0.

    MPICH opens a pipe on the others, in which Intel MPI's `-s all` writes.
    """
    if world.rank == 0:
        return False
    try:
        if os.fstat(0).st_rdev == os.makedev(1, 3):  # /dev/null (Linux, Documentation/admin-guide/devices.txt)
            return True
    except OSError:
        return True
    if world.source != "MPICH":
        return False
    from select import select

    return not select([0], [], [], 1)[0]


def _option_with_value(word):
    """The first option in `word` that takes the rest of it, and that rest.

    `-uXdev` is X and dev, `-um` is m and "", `-uB` has none.
    """
    for position, letter in enumerate(word):
        if letter in NO_SCRIPT or letter in TAKES_VALUE:
            return letter, word[position + 1 :]
    return None, None
