"""The journal of a study, Optuna's log of all its trials: its locks, and its repair."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training import TrainingError
from training.files import read_file


@contextmanager
def held(lock) -> Iterator[None]:
    """Hold one of Optuna's locks."""
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def mend_journal(journal: Path, lock) -> None:
    """Remove an incomplete last line, which a full disk leaves: Optuna would not read past it.

    Raises TrainingError if another line is damaged: the numbers of all later trials depend on it.
    """
    if not journal.exists():
        return
    with held(lock):
        content = read_file(journal)
        *lines, rest = content.split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                json.loads(line)["op_code"]
            except (ValueError, TypeError, KeyError, RecursionError):
                raise damaged_journal(journal, f"line {number}") from None
        if rest:
            os.truncate(journal, len(content) - len(rest))


def damaged_journal(journal: Path, where: str) -> TrainingError:
    return TrainingError(
        f"{journal}: damaged ({where}). Nothing was changed: restore the file, or choose another directory with --study"
    )
