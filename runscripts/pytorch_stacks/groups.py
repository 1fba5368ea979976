# SPDX-License-Identifier: BSD-3-Clause
"""Puts ranks at the same place together."""

from collections import namedtuple

from pytorch_stacks.place import find_place

Launch = namedtuple("Launch", "name step size nodes groups faults missing")
Launch.__doc__ = """The ranks of one launch: its name, step and world's size, the names of its nodes, the Groups
(smallest first), the ranks without stacks by their fault, and the numbers of ranks that were not found."""

Group = namedtuple("Group", "place ranks")
Group.__doc__ = "The ranks whose main threads are at a Place, as `node.read_node` describes them, by their numbers."


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
    for number in sorted(ranks):
        rank = ranks[number]
        if rank["fault"]:
            faults.setdefault(rank["fault"], []).append(rank)
        else:
            place = find_place(rank["threads"][0]["frames"]) if rank["threads"] else None
            groups.setdefault(place, []).append(rank)
    ordered = sorted(groups.items(), key=lambda item: (len(item[1]), item[1][0]["rank"]))
    return Launch(
        name=name,
        step=ranks[min(ranks)]["step"],
        size=size,
        nodes=sorted({rank["node"] for rank in ranks.values()}),
        groups=[Group(*item) for item in ordered],
        faults=faults,
        missing=[number for number in range(size) if number not in ranks],
    )
