# SPDX-License-Identifier: BSD-3-Clause
"""Names the places where threads are, in the words of their user, and puts ranks at the same place together."""

import re

from pytorch_launch import LaunchError
from pytorch_launch.topology import cpu_list as number_list

#: A group of at most so many ranks has the node of each in its line, and a stack at most so many lines.
NAMED_RANKS, SHOWN_FRAMES = 4, 20
#: Files of Python, of packages and of the runscripts: their lines are the same in every program.
LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64|32)?/(python|pypy)[\d.]+(?=/)|^<frozen |/pytorch_launch/")
#: Here torch's collectives start (torch/distributed).
COLLECTIVES = "/torch/distributed/distributed_c10d.py"
#: Functions that only call another one.
WRAPPERS = ("wrapper", "inner", "decorate_context", "_fn", "<lambda>", "<module>")


def find_place(frames):
    """The function that runs in a thread, and the user's own line that called it, or that is in it.

    The frames are [function, file, line], the innermost first.

    >>> find_place([["all_reduce", "/v/site-packages/torch/distributed/distributed_c10d.py", 9], ["main", "/t.py", 3]])
    ('all_reduce', 't.py:3')
    """
    own = next((number for number, frame in enumerate(frames) if not LIBRARY.search(frame[1])), 0)
    function, file, line = frames[own]
    return _called(frames[:own]) or function, f"{file.rpartition('/')[2]}:{line}"


def _called(frames):
    """The function of a library that the user's code called: a collective, else the outermost with a public name."""
    names = [(name.rpartition(".")[2], file) for name, file, _ in frames]
    public = [(name, file) for name, file in reversed(names) if _is_public(name)]
    collectives = [(name, file) for name, file in public if file.endswith(COLLECTIVES)]
    return next((name for name, _ in collectives or public or names), None)


def _is_public(name):
    is_special = name.startswith("__") and name.endswith("__") and name != "__call__"
    return name not in WRAPPERS and (is_special or not name.startswith("_"))


def report_ranks(job, answers, silent, *, is_part=False):
    """The text about the ranks in `answers`, as `node.read_node` returns them, and the exit status.

    It is 0 if all ranks have a stack; `is_part`: other ranks may be elsewhere. `silent` are (node, reason) of nodes
    without an answer. Raises LaunchError without any rank.
    """
    launches, lines = {}, []
    for rank in (rank for answer in answers for rank in answer["ranks"]):
        launches.setdefault(rank["launch"], {})[rank["rank"]] = rank
    if not launches and not silent:
        fault = f"no rank found: no Python with RANK and WORLD_SIZE among the processes of {job or 'this node'}"
        raise LaunchError(fault, "start ranks with conda-python-distributed or torchrun")
    is_complete = not silent
    for name, ranks in sorted(launches.items()):
        size, step = max(rank["size"] for rank in ranks.values()), ranks[min(ranks)]["step"]
        title = f"{job}, step {step}" if job and step else job or f"launch {name}"
        nodes = {rank["node"] for rank in ranks.values()}
        lines.append(f"{title}: {_count(size, 'rank')} on {_count(len(nodes), 'node')}")
        missing = [number for number in range(size) if number not in ranks and not is_part]
        if missing:
            lines.append(f"rank{'s' * (len(missing) > 1)} {number_list(missing)}: no process found")
        groups = {}
        for _, rank in sorted(ranks.items()):
            groups.setdefault(_where(rank), []).append(rank)
        faults = [group for group in groups.values() if group[0]["fault"]]
        for where, group in sorted(groups.items(), key=lambda item: (item[1] not in faults, len(item[1]))):
            lines += _describe(where, group)
        is_complete = is_complete and not missing and not faults
    return "\n".join(lines + [f"{node}: {reason}" for node, reason in silent]) + "\n", int(not is_complete)


def _where(rank):
    if rank["fault"]:
        return f": no stack: {rank['fault']}"
    frames = rank["threads"][0]["frames"] if rank["threads"] else []
    return " in {} at {}".format(*find_place(frames)) if frames else " without Python code"


def _describe(where, ranks):
    """Lines about ranks at the same place, with the stack of the first one."""
    subject = f"rank{'s' * (len(ranks) > 1)} " + ", ".join(f"{rank['rank']} ({rank['node']})" for rank in ranks)
    many = ": " + number_list([rank["rank"] for rank in ranks]) if len(ranks) > NAMED_RANKS else ""
    lines = [f"{_count(len(ranks), 'rank') if many else subject}{where}{many}"]
    main, *others = ranks[0]["threads"] or [{"frames": []}]
    frames = main["frames"][:SHOWN_FRAMES]
    width = max([len(name) for name, _, _ in frames], default=0)
    for name, file, line in frames:  # of a library, the file from the package on
        lines.append(f"    {name:{width}}  {re.sub(f'.*({LIBRARY.pattern})/?', '', file)}:{line}")
    if len(main["frames"]) > SHOWN_FRAMES:
        lines.append(f"    and {len(main['frames']) - SHOWN_FRAMES} more")
    for thread in others:
        frames = thread["frames"]
        names = [name.rpartition(".")[2] for name, _, _ in frames]
        if "_bootstrap" in names:  # of a thread, and of a forked process: what is above is of its parent
            frames = frames[: names.index("_bootstrap")]
        if not all(LIBRARY.search(file) for _, file, _ in frames):
            lines.append("    thread {} in {} at {}".format(thread["name"], *find_place(frames)))
    return lines


def _count(number, noun):
    return f"{number} {noun}{'s' * (number != 1)}"
