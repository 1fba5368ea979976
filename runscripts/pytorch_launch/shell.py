# SPDX-License-Identifier: BSD-3-Clause
"""Writes variables as lines of shell, for `ddp-env`."""


def statements(changes):
    """Lines for `source` that set the variables of `changes`, and unset those that are None."""
    return "".join(
        f"unset {name}\n" if value is None else f"export {name}={quoted(value)}\n"
        for name, value in sorted(changes.items())
    )


def failure(status):
    """A line that ends `source` with `status`, without ending the shell; `launch.bash` has the same."""
    return f"return {status} 2>/dev/null || (exit {status})\n"


def quoted(text):
    """`text` as one word of any POSIX shell."""
    return "'" + text.replace("'", "'\\''") + "'"
