# SPDX-License-Identifier: BSD-3-Clause
"""Writes the places of ranks, the odd ones first."""

import json

from pytorch_launch.topology import cpu_list as number_list

from pytorch_stacks.place import find_place, in_words, own_frames, short_name

#: A group of at most so many ranks has the node and GPU of each in its line.
NAMED_RANKS = 4

SHOWN_FRAMES = 20


def as_text(job, launches, silent):
    """Lines about the Launches of a job; `silent` are (node, reason) of nodes without an answer."""
    lines = []
    for launch in launches:
        lines.append(_title(job, launch))
        if launch.missing:
            lines.append(f"{_numbers(launch.missing)}: no process found")
        for fault, ranks in launch.faults.items():
            lines.append(f"{_subject(ranks)}: no stack: {fault}")
        for group in launch.groups:
            lines += _group(group)
    for node, reason in silent:
        lines.append(f"{node}: {reason}")
    return "\n".join(lines) + "\n"


def as_json(job, launches, silent):
    """The same as one line of JSON."""
    found = [
        {
            "launch": launch.name,
            "step": launch.step,
            "size": launch.size,
            "nodes": launch.nodes,
            "missing": launch.missing,
            "faults": [{"fault": fault, "ranks": _places(ranks)} for fault, ranks in launch.faults.items()],
            "groups": [
                {
                    "place": group.place and group.place._asdict(),
                    "ranks": _places(group.ranks),
                    "threads": group.ranks[0]["threads"],
                }
                for group in launch.groups
            ],
        }
        for launch in launches
    ]
    return json.dumps({"job": job, "launches": found, "silent": dict(silent)}) + "\n"


def _places(ranks):
    return [{name: rank[name] for name in ("rank", "node", "gpu", "pid")} for rank in ranks]


def _title(job, launch):
    step = f", step {launch.step}" if launch.step else ""
    where = f"job {job}{step}" if job else f"launch {launch.name}"
    return "{}: {} on {}".format(where, _count(launch.size, "rank"), _count(len(launch.nodes), "node"))


def _group(group):
    where = "without Python code" if group.place is None else "in " + in_words(group.place)
    many = ": " + number_list([rank["rank"] for rank in group.ranks]) if len(group.ranks) > NAMED_RANKS else ""
    lines = [f"{_subject(group.ranks)} {where}{many}"]
    threads = group.ranks[0]["threads"]
    frames = threads[0]["frames"] if threads else []
    width = max([len(name) for name, _, _ in frames[:SHOWN_FRAMES]], default=0)
    for name, file, line in frames[:SHOWN_FRAMES]:
        lines.append(f"    {name:{width}}  {short_name(file)}:{line}")
    if len(frames) > SHOWN_FRAMES:
        lines.append(f"    and {len(frames) - SHOWN_FRAMES} more")
    for thread in threads[1:]:
        own = own_frames(thread["frames"])
        if own:
            lines.append("    thread {} in {}".format(thread["name"], in_words(find_place(own))))
    return lines


def _subject(ranks):
    """The ranks: `rank 37 (nid0012, GPU 5)`, or their count if they are many."""
    if len(ranks) > NAMED_RANKS:
        return _count(len(ranks), "rank")
    named = ", ".join("{} ({})".format(rank["rank"], _where(rank)) for rank in ranks)
    return "rank{} {}".format("s" * (len(ranks) > 1), named)


def _where(rank):
    return rank["node"] if rank["gpu"] is None else "{}, GPU {}".format(rank["node"], rank["gpu"])


def _numbers(numbers):
    return "rank{} {}".format("s" * (len(numbers) > 1), number_list(numbers))


def _count(number, noun):
    return "{} {}{}".format(number, noun, "s" * (number != 1))
