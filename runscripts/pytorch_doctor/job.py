"""Finds the first rank that failed in the logs of a launch, for `pytorch-doctor --job`.

It compares what the ranks recorded, not only their times: clocks of nodes differ by more than the milliseconds in which
the ranks of a world lose each other. A rank that the launcher ended, or that reports a lost connection, failed after
another one. Of the rest, the first is that which made the link `first-failed.log`: the file system has one order.
"""

import re
from collections import namedtuple
from datetime import datetime
from pathlib import Path

from pytorch_launch.records import ENDING, MARK, has_lost_another, last_lines, last_report

#: What is read of the start and the end of each log.
HEAD_BYTES, TAIL_BYTES = 4096, 16384
SHOWN_LINES = 20

#: How a rank ended, most likely the cause first.
FAILED, STRUCK, NO_END, LOST, ENDED, COMPLETE = "failed", "struck", "no end", "lost", "ended", "complete"

#: Errors that a signal causes: of Python, and of DataLoader (torch/utils/data/_utils/signal_handling.py).
OF_SIGNALS = ("KeyboardInterrupt", "SystemExit", "is killed by signal")

Rank = namedtuple("Rank", "number path start end lines changed")
Rank.__doc__ = "A rank: its newest log, the fields of its records, empty without one, its last lines, and its time."


def find_launch(name, log_dir):
    """The directory of the launch `name`: a path, a name below `log_dir` such as `7.0` or the job's number.

    The newest launch below a directory of several; None if there is none.
    """
    places = [Path(name)] if name else []
    if log_dir:
        below = _launches(Path(log_dir))
        places += [Path(log_dir, name), *(path for path in below if path.name.startswith(f"{name}."))]
    for place in places:
        for directory in [place, *_launches(place)]:
            if _logs(directory):
                return directory
    return None


def read_ranks(directory):
    """The Rank of each rank of the newest start in a launch's directory, by its number."""
    newest = {}
    for path in _logs(directory):
        number, start = _numbers(path)
        if number not in newest or start > _numbers(newest[number])[1]:
            newest[number] = path
    ranks = {number: _read_rank(number, path) for number, path in sorted(newest.items())}
    # an earlier start may have had more ranks
    latest = max(ranks.values(), key=lambda rank: rank.start.get("time", ""))
    size = int(latest.start["size"]) if latest.start.get("size", "").isdecimal() else len(ranks)
    return size, {number: rank for number, rank in ranks.items() if number < size}


def kind(rank):
    """How a rank ended: FAILED, STRUCK, NO_END, LOST, ENDED, or COMPLETE.

    STRUCK is ENDED with an error of its own: the connections of a Python that ends close before it has ended, and the
    launcher may end it because other ranks lost it.
    """
    if rank.end.get("status") == "0":
        return COMPLETE
    report = last_report(rank.lines)
    has_error = any("Traceback (most recent call last)" in line for line in report)
    is_lost = has_lost_another(rank.lines)
    if rank.end.get("after") in ENDING:
        return STRUCK if has_error and not is_lost and not any(text in report[-1] for text in OF_SIGNALS) else ENDED
    if not rank.end and not has_error:
        return NO_END
    return LOST if is_lost else FAILED


def first_failed(directory, ranks):
    """The Rank that failed first, None if none failed.

    A rank without an end counts if others lost one: its node failed, or it was killed with all its processes.
    """
    linked = {link.resolve().name for link in directory.glob("first-failed*.log")}
    kinds = {number: kind(rank) for number, rank in ranks.items()}
    for wanted in (FAILED, STRUCK, NO_END, LOST):
        found = [rank for number, rank in ranks.items() if kinds[number] == wanted]
        if found and (wanted != NO_END or LOST in kinds.values()):
            return min(found, key=lambda rank: (rank.path.name not in linked, end_time(rank), rank.number))
    return None


def end_time(rank):
    """When a rank ended, in seconds since 1970, by the clock of its node; else when its log was changed."""
    try:
        return datetime.strptime(rank.end["time"] + "+0000", "%Y-%m-%dT%H:%M:%S.%fZ%z").timestamp()
    except (KeyError, ValueError):
        return rank.changed


def _logs(directory):
    return [path for path in directory.glob("rank-*.log") if _numbers(path)]


def _launches(directory):
    """The directories in `directory` that have logs, the newest first."""
    found = [path for path in directory.glob("*") if path.is_dir() and _logs(path)]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def _numbers(path):
    """The rank and the start of a log, 5 and 1 of `rank-00005.1.log`; None for other names."""
    found = re.match(r"rank-(\d{1,9})(?:\.(\d{1,9}))?\.log$", path.name)
    return found and (int(found.group(1)), int(found.group(2) or 0))


def _read_rank(number, path):
    found = path.stat()
    with path.open("rb") as log:
        head = log.read(HEAD_BYTES).decode(errors="replace")
        log.seek(max(0, found.st_size - TAIL_BYTES))
        tail = log.read().decode(errors="replace")
    lines = last_lines(tail, SHOWN_LINES)
    return Rank(number, path, _fields(head, "start"), _fields(tail, "end"), lines, found.st_mtime)


def _fields(text, event):
    """The fields of the last record of an event; empty without one."""
    start = f"{MARK} {event} "
    records = [line for line in text.split("\n") if line.startswith(start)]
    return dict(word.split("=", 1) for word in records[-1].split() if "=" in word) if records else {}
