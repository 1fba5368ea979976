# SPDX-License-Identifier: BSD-3-Clause
"""Names the places where threads are, in the words of their user, and puts ranks at the same place together.

A place is the function that runs, and the user's own line. The odd places come first.
"""

import re
from collections import namedtuple

from pytorch_launch.topology import cpu_list as number_list

#: A group of at most so many ranks has the node of each in its line.
NAMED_RANKS = 4
SHOWN_FRAMES = 20

Launch = namedtuple("Launch", "name step size nodes groups faults missing")
Launch.__doc__ = """The ranks of one launch: its name, step and world's size, the names of its nodes, the groups,
pairs of a Place and the ranks whose main threads are there (smallest first; ranks as `node.read_node` describes them),
the ranks without stacks by their fault, and the numbers of ranks that were not found."""


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


def group_ranks(nodes):
    """The Launches in what `node.read_node` returned on each node, by their names."""
    launches = {}
    for node in nodes:
        for rank in node["ranks"]:
            launches.setdefault(rank["launch"], {})[rank["rank"]] = rank
    return [_launch(name, ranks) for name, ranks in sorted(launches.items())]


def _launch(name, ranks):
    size = max(rank["size"] for rank in ranks.values())
    groups, faults = {}, {}
    for _, rank in sorted(ranks.items()):
        if rank["fault"]:
            faults.setdefault(rank["fault"], []).append(rank)
        else:
            groups.setdefault(find_place(rank["threads"][0]["frames"]) if rank["threads"] else None, []).append(rank)
    ordered = sorted(groups.items(), key=lambda item: (len(item[1]), item[1][0]["rank"]))
    missing = [number for number in range(size) if number not in ranks]
    nodes = sorted({rank["node"] for rank in ranks.values()})
    return Launch(name, ranks[min(ranks)]["step"], size, nodes, ordered, faults, missing)


def as_text(job, launches, silent):
    """Lines about the Launches of a job; `silent` are (node, reason) of nodes without an answer."""
    lines = []
    for launch in launches:
        step = f", step {launch.step}" if launch.step else ""
        where = f"{job}{step}" if job else f"launch {launch.name}"
        lines.append(f"{where}: {_count(launch.size, 'rank')} on {_count(len(launch.nodes), 'node')}")
        if launch.missing:
            lines.append(f"rank{'s' * (len(launch.missing) > 1)} {number_list(launch.missing)}: no process found")
        for fault, ranks in launch.faults.items():
            lines.append(f"{_subject(ranks)}: no stack: {fault}")
        for place, ranks in launch.groups:
            lines += _group(place, ranks)
    return "\n".join(lines + [f"{node}: {reason}" for node, reason in silent]) + "\n"


def _group(place, ranks):
    where = "without Python code" if place is None else "in " + in_words(place)
    many = ": " + number_list([rank["rank"] for rank in ranks]) if len(ranks) > NAMED_RANKS else ""
    lines = [f"{_subject(ranks)} {where}{many}"]
    threads = ranks[0]["threads"]
    frames = threads[0]["frames"] if threads else []
    width = max([len(name) for name, _, _ in frames[:SHOWN_FRAMES]], default=0)
    lines += [f"    {name:{width}}  {short_name(file)}:{line}" for name, file, line in frames[:SHOWN_FRAMES]]
    if len(frames) > SHOWN_FRAMES:
        lines.append(f"    and {len(frames) - SHOWN_FRAMES} more")
    for thread in threads[1:]:
        own = own_frames(thread["frames"])
        if own:
            lines.append(f"    thread {thread['name']} in {in_words(find_place(own))}")
    return lines


def _subject(ranks):
    """The ranks: `rank 37 (nid0012)`, or their count if they are many."""
    if len(ranks) > NAMED_RANKS:
        return _count(len(ranks), "rank")
    return f"rank{'s' * (len(ranks) > 1)} " + ", ".join(f"{rank['rank']} ({rank['node']})" for rank in ranks)


def _count(number, noun):
    return f"{number} {noun}{'s' * (number != 1)}"
