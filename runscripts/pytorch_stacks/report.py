# SPDX-License-Identifier: BSD-3-Clause
"""Puts ranks at the same place together, and writes the places, the odd ones first."""

from collections import namedtuple

from pytorch_launch.topology import cpu_list as number_list

from pytorch_stacks.place import find_place, in_words, own_frames, short_name

#: A group of at most so many ranks has the node of each in its line.
NAMED_RANKS = 4
SHOWN_FRAMES = 20

Launch = namedtuple("Launch", "name step size nodes groups faults missing")
Launch.__doc__ = """The ranks of one launch: its name, step and world's size, the names of its nodes, the groups,
pairs of a Place and the ranks whose main threads are there (smallest first; ranks as `node.read_node` describes them),
the ranks without stacks by their fault, and the numbers of ranks that were not found."""


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
