# SPDX-License-Identifier: BSD-3-Clause
"""Compares the dumps of all ranks: which collective did not finish, and which ranks did not start it.

PyTorch counts the collectives of each process group; a collective finishes when all ranks of its group have started the
one with this number (torch/distributed/flight_recorder has the fields).
"""

from collections import namedtuple

Call = namedtuple("Call", "group number name sizes frames created finished")
Call.__doc__ = """One collective of one rank: its group's name, its number in the group, its name, sizes and types, the
frames that called it, innermost first, the time of the call in ns, and whether it finished."""

Stuck = namedtuple("Stuck", "group number calls absent unknown last")
Stuck.__doc__ = """A collective that did not finish: its group and number, the Calls of the ranks that wait for it, by
name and sizes (`calls`), the ranks that did not start it (`absent`), those without a dump (`unknown`), and the last
Call of each absent one."""

#: Of a rank's calls that did not finish, so many are kept.
KEPT = 64

#: Collectives for which all ranks must have the same sizes.
SAME_SIZES = ("all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base")


def read_calls(dump):
    """The groups of one rank's dump: a dict from the name to (members or None, last number, Calls).

    The Calls are those that did not finish and the last one, by number.
    """
    members = _members(dump.get("pg_config") or {})
    status = dump.get("pg_status") or {}
    groups = {}
    for entry in dump["entries"]:
        name, description = _group_of(entry)
        if entry.get("is_p2p"):
            continue
        label = description if description not in ("", "undefined") else name
        found, last, calls = groups.get(label, (members.get(name), 0, {}))
        call = _call(label, entry, status.get(str(entry.get("pg_id")), {}))
        if last in calls and calls[last].finished:
            del calls[last]
        if call.number >= last or (not call.finished and len(calls) < KEPT):
            calls[call.number] = call
        groups[label] = found, max(last, call.number), calls
    return groups


def find_stuck(ranks, size):
    """The Stucks in a world of `size`, earliest first; `ranks` has what `read_calls` returned for each rank."""
    found = []
    for label in sorted({label for groups in ranks.values() for label in groups}):
        stuck = _stuck_in(label, ranks, size)
        if stuck is not None:
            found.append(stuck)
    return sorted(found, key=lambda stuck: min(call.created for _, calls in stuck.calls for call in calls.values()))


def _stuck_in(label, ranks, size):
    groups = {rank: of_rank[label] for rank, of_rank in ranks.items() if label in of_rank}
    unfinished = {
        rank: min(number for number, call in calls.items() if not call.finished)
        for rank, (_, _, calls) in groups.items()
        if any(not call.finished for call in calls.values())
    }
    if not unfinished:
        return None
    number = min(unfinished.values())
    members = next((members for members, _, _ in groups.values() if members), None)
    if members is None:
        members = range(size) if label in ("default_pg", "0", "") else sorted(groups)
    waiting, absent, last = {}, [], {}
    for rank in members:
        _, reached, calls = groups.get(rank, (None, 0, {}))
        if number in calls and not calls[number].finished:
            call = calls[number]
            waiting.setdefault((call.name, call.sizes), {})[rank] = call
        elif rank in ranks and reached < number:
            absent.append(rank)
            last[rank] = _latest(ranks[rank])
    unknown = [rank for rank in members if rank not in ranks]
    fewest_first = sorted(waiting.items(), key=lambda item: len(item[1]))
    return Stuck(label, number, fewest_first, absent, unknown, last)


def _latest(groups):
    """The last Call of a rank in any group, None without one."""
    calls = [call for _, _, calls in groups.values() for call in calls.values()]
    return max(calls, key=lambda call: call.created) if calls else None


def _members(config):
    """The ranks of each group, by its name; a dump has them as the text `[0, 1]`, and gloo's as `[]`."""
    found = {}
    for name, group in config.items():
        text = str(group.get("ranks", "")).strip("[] ")
        if text:
            found[name] = [int(rank) for rank in text.replace(",", " ").split()]
    return found


def _group_of(entry):
    """The name and description of a group; older versions have the name alone."""
    group = entry.get("process_group", entry.get("pg_id", ""))
    return (str(group[0]), str(group[1])) if isinstance(group, (list, tuple)) else (str(group), "")


def _call(label, entry, status):
    number = int(entry.get("collective_seq_id", entry.get("seq_id", 0)))
    library, _, name = str(entry.get("profiling_name", "")).rpartition(":")
    # NCCL's entries have the state, and are also retired when they time out; of gloo's, only this changes
    finished = entry.get("state") == "completed" or (library == "gloo" and bool(entry.get("retired")))
    finished = finished or number <= int(status.get("last_completed_collective", -1))
    types = [str(kind) for kind in entry.get("input_dtypes") or []]
    sizes = f"{','.join(types)} {entry.get('input_sizes')}".strip() if name in SAME_SIZES else ""
    frames = [[frame.get("name"), frame.get("filename"), frame.get("line")] for frame in entry.get("frames") or []]
    return Call(label, number, name, sizes, frames, int(entry.get("time_created_ns", 0)), finished)
