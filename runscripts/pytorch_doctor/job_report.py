"""Writes which rank of a launch failed first, and how the others ended."""

import json
from collections import OrderedDict

from pytorch_launch.records import ending
from pytorch_launch.topology import cpu_list as number_list

from pytorch_doctor.job import COMPLETE, ENDED, FAILED, LOST, STRUCK, end_time, first_failed, kind, read_ranks

#: Shown after how a rank of this kind ended.
REASONS = {
    LOST: ": it lost another rank, or waited too long for it",
    ENDED: ": ended from outside",
    STRUCK: ", with an error of its own",
}


def report_job(directory, is_json):
    """The text about a launch, and the exit status: 0 if all its ranks ended with status 0."""
    size, ranks = read_ranks(directory)
    first = first_failed(directory, ranks)
    groups = OrderedDict()
    for number in range(size):
        if first is None or number != first.number:
            groups.setdefault(describe(ranks.get(number)), []).append(number)
    text = _as_json(directory, size, first, groups) if is_json else _as_text(directory, size, ranks, first, groups)
    is_complete = len(ranks) == size and all(kind(rank) == COMPLETE for rank in ranks.values())
    return text, int(not is_complete)


def describe(rank):
    """How a rank ended, in a few words."""
    if rank is None:
        return "no log: did not start, or its log is elsewhere"
    if not rank.end:
        return "no end is recorded: still running, or killed with its step or node"
    return ending(rank.end) + REASONS.get(kind(rank), "")


def _as_text(directory, size, ranks, first, groups):
    nodes = {rank.start.get("node") for rank in ranks.values()}
    lines = [f"{directory}: {_count(size, 'rank')} on {_count(len(nodes), 'node')}"]
    if first is None:
        lines.append("no rank failed by itself")
    else:
        gpu = f", GPU {first.start['gpu']}" if "gpu" in first.start else ""
        when = first.end.get("time", "an unknown time")
        lines.append(f"first failed: {_place(first)}{gpu}: {describe(first)}, at {when}")
        lines += [f"    {line}" for line in first.lines]
        lines.append(f"its log: {first.path}")
        lines += _at_the_same_time(ranks, first)
    for how, numbers in groups.items():
        lines.append(f"rank{'s' * (len(numbers) > 1)} {number_list(numbers)}: {how}")
    return "\n".join(lines) + "\n"


def _count(number, noun):
    return f"{number} {noun}{'s' * (number != 1)}"


def _place(rank):
    return f"rank {rank.number} on {rank.start.get('node', 'an unknown node')}"


def _at_the_same_time(ranks, first):
    """A line about a rank of another node that failed by itself within a second, which clocks may not tell apart."""
    for rank in ranks.values():
        seconds = end_time(rank) - end_time(first)
        is_other_node = rank.start.get("node") != first.start.get("node")
        if kind(rank) == kind(first) == FAILED and is_other_node and abs(seconds) < 1:
            return [f"{_place(rank)} failed at the same time ({seconds:+.3f} s, by the clocks of two nodes)"]
    return []


def _as_json(directory, size, first, groups):
    found = None
    if first is not None:
        found = {"rank": first.number, "node": first.start.get("node"), "gpu": first.start.get("gpu")}
        found.update(end=first.end, how=describe(first), log=str(first.path), lines=first.lines)
    others = [{"ranks": numbers, "how": how} for how, numbers in groups.items()]
    return json.dumps({"directory": str(directory), "size": size, "first_failed": found, "others": others}) + "\n"
