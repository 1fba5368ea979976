"""The lines of metrics.jsonl: what they hold, and which of a file's lines are whole."""

from __future__ import annotations

import json
import re
from pathlib import Path

from training.files import read_file

METRICS_FILE = "metrics.jsonl"
VALUES = ("loss", "accuracy", "images_per_second", "learning_rate", "seconds", "world_size")
MOST_BYTES = 2**26  # of metrics.jsonl: some 400,000 epochs


def read_object(line: bytes) -> dict | None:
    """Return the JSON object of a line, None where it is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_record(line: dict | None) -> bool:
    """Return whether an object is what ``Metrics.epoch`` writes: the epoch, and numbers or null."""
    return (
        line is not None
        and type(line.get("epoch")) is int
        and line["epoch"] > 0
        and all(name in line and (line[name] is None or finite_number(line[name]) is not None) for name in VALUES)
    )


def is_cut_short(rest: bytes) -> bool:
    """Return whether the end of a file, after its last newline, is the beginning of what ``Metrics.epoch`` writes."""
    form = json.dumps(dict.fromkeys(("epoch", *VALUES), 0)).encode()
    return form.startswith(re.sub(rb"(?<=: )[-+.\denul]+", b"0", rest))  # numbers or null


def finite_number(value: object) -> float | None:
    """Return a number as a float, None where it is no number or not finite."""
    if type(value) not in (int, float) or not -1e308 < value < 1e308:
        return None
    return float(value)


def read_objects(path: Path) -> list[dict]:
    """Return the JSON objects in a file, one of each whole line that holds one; none where there is no file.

    Raises TrainingError where it is no regular file or far too large.
    """
    try:
        *lines, _cut_short = read_file(path, MOST_BYTES).split(b"\n")
    except FileNotFoundError:
        return []
    return [value for value in map(read_object, lines) if value is not None]


def read_epochs(path: Path) -> list[dict]:
    """Return what a metrics.jsonl says of each epoch, in order; nothing where there is no file."""
    return [value for value in read_objects(path) if is_record(value)]
