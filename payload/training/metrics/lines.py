# SPDX-License-Identifier: BSD-3-Clause
"""Reads the lines of metrics.jsonl, and recognises damaged ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

from training.files import read_file

METRICS_FILE = "metrics.jsonl"
VALUES = ("loss", "accuracy", "images_per_second", "learning_rate", "seconds", "world_size")
MOST_BYTES = 2**26  # of metrics.jsonl: about 400,000 epochs


class Form(NamedTuple):
    """The fields of a line: the number that orders the lines, which is an int from 1, and its values."""

    key: str
    values: tuple[str, ...]


EPOCHS = Form("epoch", VALUES)


def read_object(line: bytes) -> dict | None:
    """Return the JSON object in a line, None if it holds none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_record(line: dict | None, form: Form = EPOCHS) -> bool:
    """Return whether an object is one that ``Metrics`` writes: its key, and numbers or null."""
    return (
        line is not None
        and type(line.get(form.key)) is int
        and line[form.key] > 0
        and all(name in line and (line[name] is None or finite_number(line[name]) is not None) for name in form.values)
    )


def is_cut_short(rest: bytes, form: Form = EPOCHS) -> bool:
    """Return whether the text after a file's last newline is the beginning of a line of ``Metrics``."""
    whole = json.dumps(dict.fromkeys((form.key, *form.values), 0)).encode()
    given = re.sub(rb"(?<=: )[-+.\denul]+", b"0", rest)  # numbers or null
    return whole.startswith(given) or given.startswith(whole[:-1] + b",")  # further fields


def finite_number(value: object) -> float | None:
    """Return a number as a float, None if it is no number or not finite."""
    if type(value) not in (int, float) or not -1e308 < value < 1e308:
        return None
    return float(value)


def read_objects(path: Path) -> list[dict]:
    """Return the JSON objects in the complete lines of a file; an empty list if the file does not exist.

    Raises TrainingError if it is not a regular file or is far too large.
    """
    try:
        *lines, _cut_short = read_file(path, MOST_BYTES).split(b"\n")
    except FileNotFoundError:
        return []
    return [value for value in map(read_object, lines) if value is not None]


def read_epochs(path: Path, form: Form = EPOCHS) -> list[dict]:
    """Return the values of each epoch in a metrics.jsonl, in order; an empty list if it does not exist."""
    return [value for value in read_objects(path) if is_record(value, form)]
