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

from pytorch_launch import LaunchError

from pytorch_stacks.report import find_place, number_list

#: Of ranks that did not start a collective, so many have their last call in the text.
SHOWN_RANKS = 8
#: Collectives for which all ranks must have the same sizes.
SAME_SIZES = ("all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base")
#: Names of the group of all ranks, in new and old versions of torch.
OF_ALL = ("default_pg", "0", "")

Call = namedtuple("Call", "group number name what frames created is_finished")
Call.__doc__ = """One collective of one rank: its group's label, its number in the group, its name, the name with sizes
and types, the frames that called it, innermost first, the time of the call in ns, and whether it finished."""

Group = namedtuple("Group", "members reached unfinished")
Group.__doc__ = "One group in one rank's dump: its members or None, the last number, and unfinished Calls by number."

Dump = namedtuple("Dump", "groups transfer last size")
Dump.__doc__ = """One rank's dump: `groups` from a group's label and name to its Group; the first send or receive that
did not finish, and the last collective, None without one; the world's size, None if it is not recorded."""


class Values(pickle.Unpickler):
    """Reads a pickle of plain values."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"it would run {module}.{name}: not written by PyTorch")


def report_dumps(place, world_size=None):
    """The text about the dumps at `place`, and the exit status: 0 if all collectives of all ranks finished.

    `world_size` is the number of ranks, for dumps that do not have it. Raises LaunchError and OSError.
    """
    prefix, files = find_dumps(place)
    ranks, lines = {}, []
    for rank, path in sorted(files.items()):
        try:
            ranks[rank] = read_dump(path)
        except Exception as error:  # pickle raises what it meets in a damaged file
            lines.append(f"{path}: damaged or no dump: {type(error).__name__}: {error}")
    sizes = {world_size} if world_size else {dump.size for dump in ranks.values()} - {None}
    size = max(sizes, default=None)
    if len(sizes) > 1 or (size and max(files) >= size):
        numbers = " and ".join(map(str, sorted(sizes)))
        fault = f"{prefix}*: ranks {number_list(files)} are not of a world of {numbers}"
        raise LaunchError(fault, "remove older dumps")
    missing = sorted(set(range(size or max(files) + 1)) - set(files))
    if missing:
        lines.append(f"no dump: {_ranks(missing)}. It ended before, or wrote elsewhere")
    if not size:
        lines.append("the dumps do not tell the size of the world. Pass --world-size")
    faults = _faults(ranks, size or max(files) + 1)
    if not faults and not lines and not any(dump.groups for dump in ranks.values()):
        faults = ["no collective is recorded"]
    is_well = not faults and not lines
    verdict = ["every collective finished on every rank"] if is_well else [] if faults else ["no verdict"]
    title = f"{prefix}*: dumps of {len(ranks)} rank{'s' * (len(ranks) != 1)}"
    return "\n".join([title, *lines, *faults, *verdict]) + "\n", int(not is_well)


def find_dumps(place):
    """The start of the names of the newest dumps at `place`, and their paths by rank.

    `place` is a directory, or a path to the start of names in it: a directory may have the dumps of several launches.
    """
    directory, start, launches = Path(place), "", {}
    if not directory.is_dir():
        directory, start = directory.parent, directory.name
    for path in directory.iterdir():
        found = re.match(r"(.*?)(\d{1,9})$", path.name)
        if found and path.name.startswith(start) and path.is_file():
            launches.setdefault(found.group(1), {}).setdefault(int(found.group(2)), path)
    if not launches:
        raise LaunchError(f"no dumps in {place}: no file whose name ends in a rank, as nccl_rank_5", "check the path")
    newest = max(launches, key=lambda prefix: max(path.stat().st_mtime for path in launches[prefix].values()))
    return str(directory / newest), launches[newest]


def read_dump(path):
    """The Dump in a file. Raises exceptions of any kind for a file that is none."""
    with Path(path).open("rb") as file:
        dump = Values(file).load()
    members, size, groups, transfer, last = {}, None, {}, None, None
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
        call = _call(label, entry, int(status.get("last_completed_collective", -1)))
        if entry.get("is_p2p"):
            transfer = transfer or (None if call.is_finished else call)
            continue
        last = call if last is None or call.created >= last.created else last
        known = groups.get((label, name), Group(members.get(name), 0, {}))
        groups[label, name] = known._replace(reached=max(known.reached, call.number))
        if not call.is_finished:
            known.unfinished[call.number] = call
    return Dump(groups, transfer, last, size)


def _call(label, entry, completed):
    """The Call of an entry; `completed` is the last collective of its group that finished."""
    is_transfer = bool(entry.get("is_p2p"))
    number = int(entry.get("p2p_seq_id" if is_transfer else "collective_seq_id", entry.get("seq_id", 0)))
    library, _, name = str(entry.get("profiling_name", "")).rpartition(":")
    # NCCL's entries have the state, and are also retired when they time out; of gloo's, only this changes
    is_finished = entry.get("state") == "completed" or (library == "gloo" and bool(entry.get("retired")))
    is_finished = is_finished or (not is_transfer and number <= completed)
    types = ",".join(map(str, entry.get("input_dtypes") or []))
    what = f"{name} of {f'{types} ' if types else ''}{entry.get('input_sizes')}" if name in SAME_SIZES else name
    created = int(entry.get("time_created_ns", 0))
    return Call(label, number, name, what, entry.get("frames") or [], created, is_finished)


def _called(call):
    frames = [[frame.get("name"), frame.get("filename"), frame.get("line")] for frame in call.frames]
    return f", called at {find_place(frames)[1]}" if frames else ""


def _faults(ranks, size):
    """Lines about what did not finish in a world of `size`, the earliest first."""
    found = []
    for key in {key for dump in ranks.values() for key in dump.groups}:
        groups, label = {rank: dump.groups[key] for rank, dump in ranks.items() if key in dump.groups}, key[0]
        members = next((group.members for group in groups.values() if group.members), None)
        if members is None:
            members = range(size) if label in OF_ALL else sorted(groups)
        reached = {rank: groups[rank].reached if rank in groups else 0 for rank in members if rank in ranks}
        unfinished = [call for group in groups.values() for call in group.unfinished.values()]
        if unfinished:
            number = min(call.number for call in unfinished)
            lines = _stuck(label, number, {rank: group.unfinished.get(number) for rank, group in groups.items()})
            absent = [rank for rank, last in reached.items() if last < number]
            lines += [f"    rank {rank} did not start it: {_last(ranks[rank].last)}" for rank in absent[:SHOWN_RANKS]]
            more, unknown = absent[SHOWN_RANKS:], [rank for rank in members if rank not in ranks]
            lines += [f"    {_ranks(more)} did not start it"] if more else []
            lines += [f"    {_ranks(unknown)}: no dump"] if unknown else []
            found.append((min(call.created for call in unfinished), lines))
        elif len(set(reached.values())) > 1:  # such as a broadcast, which its source does not wait for
            least, most = min(reached.values()), max(reached.values())
            behind = [rank for rank, last in reached.items() if last < most]
            text = f"group {label}: {_ranks(behind)} did not start collective {most}: at {least} in its dump"
            found.append((float("inf"), [text]))
    for rank, dump in sorted(ranks.items()):
        if dump.transfer:
            text = f"group {dump.transfer.group}: rank {rank}: {dump.transfer.name} did not finish"
            found.append((dump.transfer.created, [text + _called(dump.transfer)]))
    return [line for _, lines in sorted(found, key=lambda item: item[0]) for line in lines]


def _stuck(label, number, calls):
    """Lines about the ranks that wait for collective `number` of a group, by their Calls, None if it finished there."""
    waiting = {}
    for rank, call in calls.items():
        if call:
            waiting.setdefault(call.what, []).append(rank)
    places = {what: _called(calls[found[0]]) for what, found in waiting.items()}
    if len(waiting) == 1:
        ((what, found),) = waiting.items()
        text = f"group {label}: collective {number}, {what}, did not finish{places[what]}"
        return [text, f"    waiting: {_ranks(found)}"]
    fewest_first = sorted(waiting.items(), key=lambda item: len(item[1]))
    lines = [f"    {_ranks(found)}: {what}{places[what]}" for what, found in fewest_first]
    return [f"group {label}: the ranks do not agree on collective {number}", *lines]


def _last(call):
    if call is None:
        return "no collective of it is recorded"
    state = "finished" if call.is_finished else "did not finish"
    return f"its last, {call.name} ({call.number} of group {call.group}), {state}{_called(call)}"


def _ranks(numbers):
    return f"rank{'s' * (len(numbers) > 1)} {number_list(numbers)}"
