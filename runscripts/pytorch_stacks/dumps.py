# SPDX-License-Identifier: BSD-3-Clause
"""Reads the dumps of PyTorch's flight recorder, and names the collectives that some rank did not start or finish.

PyTorch counts the collectives of each process group; a collective finishes when all ranks of its group have started the
one with this number (torch/distributed/flight_recorder has the fields). A dump is a pickle of numbers, texts, None,
lists, tuples and dicts (torch/csrc/distributed/c10d, FlightRecorderDetail.hpp, `dump`).
"""

import pickle  # noqa: S403  (the subclass below loads no functions)
import re
from collections import namedtuple
from pathlib import Path

from pytorch_stacks import StacksError
from pytorch_stacks.report import find_place, number_list, source_line

#: Of a rank's calls that did not finish, so many are kept; of ranks, so many have their last call in the text.
KEPT, SHOWN_RANKS = 64, 8
#: Collectives for which all ranks must have the same sizes.
SAME_SIZES = ("all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base")
#: Names of the group of all ranks, in new and old versions of torch.
OF_ALL = ("default_pg", "0", "")

Call = namedtuple("Call", "group number name what frames created finished")
Call.__doc__ = """One collective of one rank: its group's label, its number in the group, its name, the name with sizes
and types, the frames that called it, innermost first, the time of the call in ns, and whether it finished."""

Dump = namedtuple("Dump", "groups transfers size")
Dump.__doc__ = """One rank's dump: `groups` from a group's label and name to (members or None, Calls by number), those
that did not finish and the last one; `transfers`, the sends and receives that did not finish; and the world's size,
None if it is not recorded."""


class DumpError(Exception):
    """The file is not a dump; the message has the reason."""


class Values(pickle.Unpickler):
    """Reads a pickle of plain values."""

    def find_class(self, module, name):
        raise DumpError(f"it would run {module}.{name}: not written by PyTorch")


def report_dumps(place, world_size=None):
    """The text about the dumps at `place`, and the exit status: 0 if all collectives of all ranks finished.

    `world_size` is the number of ranks, for dumps that do not have it. Raises StacksError.
    """
    prefix, files = find_dumps(place)
    ranks, lines = {}, []
    for rank, path in sorted(files.items()):
        try:
            ranks[rank] = read_dump(path)
        except DumpError as error:
            lines.append(f"{path}: {error}")
    sizes = {world_size} if world_size else {dump.size for dump in ranks.values()} - {None}
    size = max(sizes, default=None)
    if len(sizes) > 1 or (size and max(files) >= size):
        numbers = " and ".join(map(str, sorted(sizes)))
        raise StacksError(f"{prefix}*: ranks {number_list(files)} are not of a world of {numbers}. Remove older dumps")
    missing = sorted(set(range(size or max(files) + 1)) - set(files))
    if missing:
        lines.append(f"no dump: {_ranks(missing)}. It ended before, or wrote elsewhere")
    if not size:
        lines.append("the dumps do not tell the size of the world. Pass --world-size")
    faults = _faults(ranks, size or max(files) + 1)
    if not faults and not lines:
        is_empty = not any(dump.groups for dump in ranks.values())
        faults = ["no collective is recorded"] if is_empty else []
    is_well = not faults and not lines
    verdict = ["every collective finished on every rank"] if is_well else [] if faults else ["no verdict"]
    title = f"{prefix}*: dumps of {len(ranks)} rank{'s' * (len(ranks) != 1)}"
    return "\n".join([title, *lines, *faults, *verdict]) + "\n", int(not is_well)


def find_dumps(place):
    """The start of the names of the newest dumps at `place`, and their paths by rank. Raises StacksError.

    `place` is a directory, or a path to the start of names in it: a directory may have the dumps of several launches.
    """
    directory, start, launches = Path(place), "", {}
    try:
        if not directory.is_dir():
            directory, start = directory.parent, directory.name
        for path in directory.iterdir():
            found = re.match(r"(.*?)(\d{1,9})$", path.name)
            if found and path.name.startswith(start) and path.is_file():
                launches.setdefault(found.group(1), {}).setdefault(int(found.group(2)), path)
    except OSError as error:
        raise StacksError(f"{place}: {error.strerror}. Name the directory of the dumps") from error
    if not launches:
        raise StacksError(f"no dumps in {place}: no file whose name ends in a rank, as nccl_rank_5. Check the path")
    newest = max(launches, key=lambda prefix: max(path.stat().st_mtime for path in launches[prefix].values()))
    return str(directory / newest), launches[newest]


def read_dump(path):
    """The Dump in a file. Raises DumpError."""
    try:
        with Path(path).open("rb") as file:
            dump = Values(file).load()
        if not isinstance(dump, dict) or not isinstance(dump.get("entries"), list):
            raise DumpError("not a dump of PyTorch's flight recorder")
        return _dump(dump)
    except DumpError:
        raise
    except Exception as error:  # pickle raises what it meets in a damaged file
        raise DumpError(f"{type(error).__name__}: {error}. The rank may have ended while it wrote") from error


def _dump(dump):
    members, size, groups, transfers = {}, None, {}, []
    for name, group in (dump.get("pg_config") or {}).items():
        text = str(group.get("ranks", "")).strip("[] ")  # NCCL's `[0, 1]`, gloo's `[]`
        if text:
            members[name] = [int(rank) for rank in text.replace(",", " ").split()]
            size = len(members[name]) if str(group.get("desc", name)) in OF_ALL else size
    for entry in dump["entries"]:
        group = entry.get("process_group", entry.get("pg_id", ""))  # name and description; older versions: the name
        name, description = map(str, group) if isinstance(group, (list, tuple)) else (str(group), "")
        label = name if description in ("", "undefined") else description
        if name in members and label not in OF_ALL:  # the rows of a mesh have one description
            label = f"{label} ({_ranks(members[name])})"
        status = (dump.get("pg_status") or {}).get(str(entry.get("pg_id")), {})
        call, is_transfer = _call(label, entry, int(status.get("last_completed_collective", -1)))
        _, calls = (None, {}) if is_transfer else groups.setdefault((label, name), (members.get(name), {}))
        last = max(calls, default=0)
        if is_transfer:
            transfers += [] if call.finished else [call]
        elif call.number >= last or (not call.finished and len(calls) < KEPT):
            if last in calls and calls[last].finished:
                del calls[last]
            calls[call.number] = call
    return Dump(groups, transfers, size)


def _call(label, entry, completed):
    """The Call of an entry, and whether it is a send or receive; `completed` is the last number that finished."""
    is_transfer = bool(entry.get("is_p2p"))
    number = int(entry.get("p2p_seq_id" if is_transfer else "collective_seq_id", entry.get("seq_id", 0)))
    library, _, name = str(entry.get("profiling_name", "")).rpartition(":")
    # NCCL's entries have the state, and are also retired when they time out; of gloo's, only this changes
    finished = entry.get("state") == "completed" or (library == "gloo" and bool(entry.get("retired")))
    finished = finished or (not is_transfer and number <= completed)
    types = [str(kind) for kind in entry.get("input_dtypes") or []]
    what = " of ".join([name, f"{','.join(types)} {entry.get('input_sizes')}".strip()][: 1 + (name in SAME_SIZES)])
    frames = [[frame.get("name"), frame.get("filename"), frame.get("line")] for frame in entry.get("frames") or []]
    return Call(label, number, name, what, frames, int(entry.get("time_created_ns", 0)), finished), is_transfer


def _faults(ranks, size):
    """Lines about what did not finish in a world of `size`, the earliest first."""
    found = []
    for key in {key for dump in ranks.values() for key in dump.groups}:
        groups, label = {rank: dump.groups[key] for rank, dump in ranks.items() if key in dump.groups}, key[0]
        members = next((members for members, _ in groups.values() if members), None)
        if members is None:
            members = range(size) if label in OF_ALL else sorted(groups)
        calls = {rank: groups[rank][1] if rank in groups else {} for rank in members if rank in ranks}
        unfinished = [call for own in calls.values() for call in own.values() if not call.finished]
        reached = {rank: max(own, default=0) for rank, own in calls.items()}
        least, most = min(reached.values(), default=0), max(reached.values(), default=0)
        if unfinished:
            lines = _stuck(label, min(call.number for call in unfinished), calls, ranks)
            unknown = [rank for rank in members if rank not in ranks]
            lines += [f"    {_ranks(unknown)}: no dump"] if unknown else []
            found.append((min(call.created for call in unfinished), lines))
        elif least < most:  # such as a broadcast, which its source does not wait for
            behind = [rank for rank, last in reached.items() if last < most]
            text = f"group {label}: {_ranks(behind)} did not start collective {most}: at {least} in its dump"
            found.append((float("inf"), [text]))
    for rank, dump in sorted(ranks.items()):
        for call in dump.transfers[:1]:
            text = f"group {call.group}: rank {rank}: {call.name} did not finish{_called(call)}"
            found.append((call.created, [text]))
    return [line for _, lines in sorted(found, key=lambda item: item[0]) for line in lines]


def _stuck(label, number, calls, ranks):
    """Lines about collective `number` of a group: the ranks that wait for it, and those that did not start it."""
    waiting, absent = {}, [rank for rank, own in calls.items() if max(own, default=0) < number]
    for rank, own in calls.items():
        if number in own and not own[number].finished:
            waiting.setdefault(own[number].what, []).append(rank)
    places = {what: _called(calls[waiting[what][0]][number]) for what in waiting}
    if len(waiting) == 1:
        ((what, found),) = waiting.items()
        lines = [f"group {label}: collective {number}, {what}, did not finish{places[what]}"]
        lines.append(f"    waiting: {_ranks(found)}")
    else:
        lines = [f"group {label}: the ranks do not agree on collective {number}"]
        fewest_first = sorted(waiting.items(), key=lambda item: len(item[1]))
        lines += [f"    {_ranks(found)}: {what}{places[what]}" for what, found in fewest_first]
    lines += [f"    rank {rank} did not start it: {_last(ranks[rank])}" for rank in absent[:SHOWN_RANKS]]
    return lines + [f"    {_ranks(absent[SHOWN_RANKS:])} did not start it"] * (len(absent) > SHOWN_RANKS)


def _last(dump):
    calls = [call for _, calls in dump.groups.values() for call in calls.values()]
    if not calls:
        return "no collective of it is recorded"
    call = max(calls, key=lambda call: call.created)
    state = "finished" if call.finished else "did not finish"
    return f"its last, {call.name} ({call.number} of group {call.group}), {state}{_called(call)}"


def _called(call):
    place = find_place(call.frames)
    return f", called at {source_line(place)}" if place else ""


def _ranks(numbers):
    return f"rank{'s' * (len(numbers) > 1)} {number_list(numbers)}"
