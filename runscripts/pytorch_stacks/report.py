# SPDX-License-Identifier: BSD-3-Clause
"""Names the places where threads are, in the words of their user, and puts ranks at the same place together."""

import re

from pytorch_launch import LaunchError, printable
from pytorch_launch.topology import cpu_list as number_list

#: A group of at most so many ranks has the node of each in its line, and a stack at most so many lines.
NAMED_RANKS = 4
SHOWN_FRAMES = 20
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
    depth = 0
    for number, (_, file, _) in enumerate(frames):
        if not LIBRARY.search(file):
            depth = number
            break
    function, file, line = frames[depth]
    return find_called(frames[:depth]) or function, f"{file.rpartition('/')[2]}:{line}"


def find_called(frames):
    """The function of a library that the user's code called: a collective, else the outermost with a public name."""
    names = [(name.rpartition(".")[2], file) for name, file, _ in frames]
    public = [(name, file) for name, file in reversed(names) if is_public(name)]
    collectives = [(name, file) for name, file in public if file.endswith(COLLECTIVES)]
    for name, _ in collectives or public or names:
        return name
    return None


def is_public(name):
    is_special = name.startswith("__") and name.endswith("__") and name != "__call__"
    return name not in WRAPPERS and (is_special or not name.startswith("_"))


def report_ranks(job, ranks, silent):
    """The text about Ranks of a job, and the exit status: 0 if all have a stack.

    Without a `job`, None, other ranks may be elsewhere. `silent` are (node, reason) of nodes without an answer. Raises
    LaunchError without any rank.
    """
    launches = {}
    for rank in ranks:
        launches.setdefault(rank.launch, {})[rank.rank] = rank
    if not launches and not silent:
        fault = f"no rank found: no Python with RANK and WORLD_SIZE among the processes of {job or 'this node'}"
        raise LaunchError(fault, "start ranks with conda-python-distributed or torchrun")
    lines = []
    is_complete = not silent and not any(rank.fault for rank in ranks)
    for name, found in sorted(launches.items()):
        lines.append(describe_launch(job, name, found))
        missing = set(range(world_size(found))).difference(found)
        if job and missing:
            lines.append(f"rank {number_list(missing)}: no process found")
            is_complete = False
        for place, group in group_ranks(found):
            lines += describe_group(place, group)
    lines += [f"{node}: {reason}" for node, reason in silent]
    return "".join(printable(line) + "\n" for line in lines), int(not is_complete)


def describe_launch(job, name, ranks):
    """The first line about a launch, whose `ranks` are Ranks by number."""
    step = ranks[min(ranks)].step
    title = job or f"launch {name}"
    if job and step:
        title = f"{job}, step {step}"
    nodes = {rank.node for rank in ranks.values()}
    return f"{title}: {count(world_size(ranks), 'rank')} on {count(len(nodes), 'node')}"


def world_size(ranks):
    return max(rank.size for rank in ranks.values())


def group_ranks(ranks):
    """Pairs of a place and its Ranks: those without a stack first, then the smallest groups."""
    groups = {}
    for _, rank in sorted(ranks.items()):
        groups.setdefault(describe_place(rank), []).append(rank)
    return sorted(groups.items(), key=lambda item: (not item[1][0].fault, len(item[1])))


def describe_place(rank):
    if rank.fault:
        return f": no stack: {rank.fault}"
    if not rank.threads or not rank.threads[0].frames:
        return " without Python code"
    return " in {} at {}".format(*find_place(rank.threads[0].frames))


def describe_group(place, ranks):
    """Lines about ranks at the same place, with the stack of the first one."""
    if len(ranks) > NAMED_RANKS:
        lines = [f"{count(len(ranks), 'rank')}{place}: {number_list([rank.rank for rank in ranks])}"]
    else:
        named = ", ".join(f"{rank.rank} ({rank.node})" for rank in ranks)
        lines = [f"rank {named}{place}"]
    for thread in ranks[0].threads[:1]:
        lines += describe_stack(thread.frames)
    for thread in ranks[0].threads[1:]:
        lines += describe_other_thread(thread)
    return lines


def describe_stack(frames):
    shown = frames[:SHOWN_FRAMES]
    width = max([len(name) for name, _, _ in shown], default=0)
    lines = []
    for name, file, line in shown:  # of a library, the file from the package on
        lines.append(f"    {name:{width}}  {re.sub(f'.*({LIBRARY.pattern})/?', '', file)}:{line}")
    if len(frames) > len(shown):
        lines.append(f"    and {len(frames) - len(shown)} more")
    return lines


def describe_other_thread(thread):
    """A line about a thread that runs the user's code, none about another one."""
    frames = thread.frames
    names = [name.rpartition(".")[2] for name, _, _ in frames]
    if "_bootstrap" in names:  # of a thread, and of a forked process: what is above is of its parent
        frames = frames[: names.index("_bootstrap")]
    if all(LIBRARY.search(file) for _, file, _ in frames):
        return []
    return ["    thread {} in {} at {}".format(thread.name, *find_place(frames))]


def count(number, word):
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
