# SPDX-License-Identifier: BSD-3-Clause
"""Writes which collectives did not finish, from the dumps of PyTorch's flight recorder in a directory."""

import json
import re
from pathlib import Path

from pytorch_launch.topology import cpu_list as number_list

from pytorch_stacks import StacksError
from pytorch_stacks.collectives import find_stuck, read_calls
from pytorch_stacks.pickles import DumpError, read_dump
from pytorch_stacks.place import find_place, source_line

#: Ranks that did not start a collective, with the last one of each.
SHOWN_RANKS = 8


def report_dumps(place, is_json):
    """The text about the dumps at `place`, and the exit status: 0 if all collectives finished. Raises StacksError."""
    prefix, files = find_dumps(place)
    ranks, faults = {}, []
    for rank, path in sorted(files.items()):
        try:
            ranks[rank] = read_calls(read_dump(path))
        except DumpError as error:
            faults.append((str(path), str(error)))
    size = max(files) + 1
    found = find_stuck(ranks, size)
    missing = [rank for rank in range(size) if rank not in files]
    show = _as_json if is_json else _as_text
    return show(prefix, ranks, found, missing, faults), int(bool(found or faults or missing))


def find_dumps(place):
    """The start of the names of the newest dumps at `place`, and their paths by rank. Raises StacksError.

    `place` is a directory, or a path to the start of names in it: a directory may have the dumps of several launches.
    """
    directory, start = Path(place), ""
    if not directory.is_dir():
        directory, start = directory.parent, directory.name
    launches = {}
    try:
        for path in directory.iterdir():
            found = re.match(r"(.*?)(\d{1,9})(\.json)?$", path.name)
            if found and path.name.startswith(start) and path.is_file():
                launches.setdefault(found.group(1), {}).setdefault(int(found.group(2)), path)
    except OSError as error:
        raise StacksError(f"{place}: {error.strerror}. Name the directory of the dumps") from error
    if not launches:
        raise StacksError(f"no dumps in {place}: no file whose name ends in a rank, as nccl_rank_5. Check the path")
    newest = max(launches, key=lambda prefix: max(path.stat().st_mtime for path in launches[prefix].values()))
    return str(directory / newest), launches[newest]


def _as_text(prefix, ranks, found, missing, faults):
    lines = [f"{prefix}*: dumps of {len(ranks)} rank{'s' * (len(ranks) != 1)}"]
    if missing:
        lines.append(f"no dump: {_ranks(missing)}. It ended before, or wrote elsewhere")
    lines += [f"{path}: {fault}" for path, fault in faults]
    for stuck in found:
        lines += _stuck(stuck)
    if not found:
        lines.append("every collective finished on every rank")
    return "\n".join(lines) + "\n"


def _stuck(stuck):
    if len(stuck.calls) == 1:
        ((name, sizes), calls), *_ = stuck.calls
        what = f"collective {stuck.number}, {_named(name, sizes)}, did not finish{_called(calls)}"
        lines = [f"group {stuck.group}: {what}", f"    waiting: {_ranks(list(calls))}"]
    else:
        lines = [f"group {stuck.group}: the ranks do not agree on collective {stuck.number}"]
        lines += [f"    {_ranks(list(calls))}: {_named(*what)}{_called(calls)}" for what, calls in stuck.calls]
    for rank in stuck.absent[:SHOWN_RANKS]:
        lines.append(f"    rank {rank} did not start it: {_last(stuck.last[rank])}")
    if len(stuck.absent) > SHOWN_RANKS:
        lines.append(f"    {_ranks(stuck.absent[SHOWN_RANKS:])} did not start it")
    if stuck.unknown:
        lines.append(f"    {_ranks(stuck.unknown)}: no dump")
    return lines


def _named(name, sizes):
    return f"{name} of {sizes}" if sizes else name


def _called(calls):
    """Where the first of the ranks called it."""
    place = find_place(calls[min(calls)].frames)
    return f", called at {source_line(place)}" if place else ""


def _last(call):
    if call is None:
        return "no collective of it is recorded"
    state = "finished" if call.finished else "did not finish"
    return f"its last, {call.name} ({call.number} of group {call.group}), {state}{_called({0: call})}"


def _ranks(numbers):
    return f"rank{'s' * (len(numbers) > 1)} {number_list(numbers)}"


def _as_json(prefix, ranks, found, missing, faults):
    stuck = [
        {
            "group": one.group,
            "number": one.number,
            "absent": one.absent,
            "unknown": one.unknown,
            "calls": [
                {"name": name, "sizes": sizes, "ranks": sorted(calls), "frames": calls[min(calls)].frames}
                for (name, sizes), calls in one.calls
            ],
            "last": {rank: call and call._asdict() for rank, call in one.last.items()},
        }
        for one in found
    ]
    values = {"dumps": prefix, "ranks": sorted(ranks), "stuck": stuck, "missing": missing, "faults": dict(faults)}
    return json.dumps(values) + "\n"
