# SPDX-License-Identifier: BSD-3-Clause
"""Finds the script in Python's arguments, so that a wrong path causes one line per node, not a traceback per rank."""

# Options of python(1) without a script after them: code, a module, or a text that Python prints.
NO_SCRIPT = ("c", "m", "h", "V", "?")
# Options with a value, attached or as the next argument.
TAKES_VALUE = ("W", "X")


def script_path(arguments):
    """The path of the script in the arguments of Python, None if there is none."""
    words = iter(arguments)
    for word in words:
        if word == "-" or not word.startswith("-"):
            return _unless_stdin(word)
        if word == "--":
            return _unless_stdin(next(words, "-"))
        if word == "--check-hash-based-pycs":
            next(words, None)
            continue
        option, value = _option_with_value(word)
        if word.startswith("--") or option in NO_SCRIPT:
            return None
        if option in TAKES_VALUE and not value:
            next(words, None)
    return None


def _unless_stdin(word):
    return None if word == "-" else word


def _option_with_value(word):
    """The first option in `word` that takes the rest of it, and that rest.

    `-uXdev` is X and dev, `-um` is m and "", `-uB` has none.
    """
    for position, letter in enumerate(word):
        if letter in NO_SCRIPT or letter in TAKES_VALUE:
            return letter, word[position + 1 :]
    return None, None
