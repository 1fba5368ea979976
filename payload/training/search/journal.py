"""Checks and repairs the journal of a study, Optuna's log of all its trials."""

from __future__ import annotations

import json
import os
from pathlib import Path

from training import TrainingError
from training.files import read_file


def mend_journal(journal: Path, lock) -> None:
    """Remove an incomplete last line, which a full disk leaves: Optuna would not read past it.

    Raises TrainingError if another line is damaged: the numbers of all later trials depend on it.
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
        f"{journal}: damaged ({where}). Nothing was changed: restore the file, or choose another directory with --study"
    )
