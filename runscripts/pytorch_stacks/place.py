# SPDX-License-Identifier: BSD-3-Clause
"""Names the place where a thread is, in the words of its user: the function that runs, and the user's own line."""

import re
from collections import namedtuple

Place = namedtuple("Place", "function file line")
Place.__doc__ = "`function` runs, called at `line` of `file`; or it is the function that this line is in."

#: Files of Python, of packages and of the runscripts: their lines are the same in every program.
LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64|32)?/(python|pypy)[\d.]+(?=/)|^<frozen |/pytorch_launch/")

#: Here torch's collectives start (torch/distributed).
COLLECTIVES = "/torch/distributed/distributed_c10d.py"

#: Functions that only call another one.
WRAPPERS = ("wrapper", "inner", "decorate_context", "_fn", "<lambda>", "<module>")


def find_place(frames):
    """The Place of a thread with these frames, [function, file, line], the innermost first; None without frames.

    >>> find_place([["all_reduce", "/v/site-packages/torch/distributed/distributed_c10d.py", 9], ["main", "/t.py", 3]])
    Place(function='all_reduce', file='/t.py', line=3)
    """
    if not frames:
        return None
    own = next((number for number, frame in enumerate(frames) if not is_library(frame[1])), None)
    if own is None:
        return Place(*frames[0])
    function, file, line = frames[own]
    return Place(_called(frames[:own]) or function, file, line)


def own_frames(frames):
    """The frames of a thread that runs the user's code, else none; of a forked process, only those since the fork."""
    names = [name.rpartition(".")[2] for name, _, _ in frames]
    since = frames[: names.index("_bootstrap")] if "_bootstrap" in names else frames  # of threading, multiprocessing
    return [] if all(is_library(file) for _, file, _ in since) else since


def is_library(file):
    return bool(LIBRARY.search(file))


def short_name(file):
    """The name of a library's file from the package on, as `torch/nn/modules/module.py`; else the whole path."""
    ends = [found.end() for found in LIBRARY.finditer(file)]
    return file[ends[-1] :].lstrip("/") if ends else file


def in_words(place):
    return f"{place.function} at {source_line(place)}"


def source_line(place):
    return f"{place.file.rpartition('/')[2]}:{place.line}"


def _called(frames):
    """The function of a library that the user's code called: a collective, else the outermost with a public name."""
    names = [(name.rpartition(".")[2], file) for name, file, _ in frames]
    collective = next((name for name, file in reversed(names) if file.endswith(COLLECTIVES) and _is_public(name)), None)
    public = next((name for name, _ in reversed(names) if _is_public(name)), None)
    return collective or public or (names[0][0] if names else None)


def _is_public(name):
    is_special = name.startswith("__") and name.endswith("__") and name != "__call__"
    return name not in WRAPPERS and (is_special or not name.startswith("_"))
