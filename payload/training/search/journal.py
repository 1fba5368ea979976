"""The journal of a study: Optuna's log of all that happened."""

from __future__ import annotations

import json
import os
from pathlib import Path

from training import TrainingError
from training.files import read_file


def mend_journal(journal: Path, lock) -> None:
    """Cut off the part of a line that a full disk leaves: Optuna would read no further.

    Raises TrainingError where another line is damaged: the numbers of all later trials depend on it.
    """
    if not journal.exists():
        return
    lock.acquire()
    try:
        content = read_file(journal)
        *lines, rest = content.split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                if "op_code" not in json.loads(line):
                    raise ValueError
            except (ValueError, TypeError, RecursionError):
                raise damaged_journal(journal, f"line {number}") from None
        if rest:
            os.truncate(journal, len(content) - len(rest))
    finally:
        lock.release()


def damaged_journal(journal: Path, where: str) -> TrainingError:
    return TrainingError(
        f"{journal}: damaged ({where}). Restore the file, or name another directory with --study; nothing was changed"
    )
