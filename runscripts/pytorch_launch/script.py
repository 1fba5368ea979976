# SPDX-License-Identifier: BSD-3-Clause
"""Finds the script in Python's arguments, so that a wrong path causes one line per node, not a traceback per rank."""

import posix as os

from pytorch_launch import exists

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
        # the first option in the word that takes the rest of it: `-uXdev` is X and dev, `-um` is m, `-uB` has none
        start = next((at for at, letter in enumerate(word) if letter in NO_SCRIPT + TAKES_VALUE), None)
        if word.startswith("--") or (start is not None and word[start] in NO_SCRIPT):
            return None
        if start == len(word) - 1:
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


def missing(script, env):
    """What is wrong, and what to do, where the file of a script is not there."""
    try:
        here = os.getcwd()
    except OSError:
        return f"{script}: no such file in a working directory that is gone", "Check the path"
    from os.path import dirname, realpath

    from pytorch_launch.container import bind_line, in_container

    directory = dirname(realpath(script))
    if not in_container(env) or exists(directory):
        return f"{script}: no such file in {here}", "Check the path"
    return f"{script}: its directory, {directory}, is not visible in this image", bind_line(env, directory)
