"""The names of checkpoints: how a position becomes a file name, and how file names are ordered."""

from __future__ import annotations

import re

BEST = "best.pt"
DAMAGED = ".damaged"  # after the name of a checkpoint that was put aside
CHECKPOINT = re.compile(r"epoch-(\d{4,})-step-(\d{6,})\.pt")


def checkpoint_name(epoch: int, step: int) -> str:
    """Return the name of the checkpoint after ``epoch`` epochs and ``step`` steps of the next."""
    return f"epoch-{epoch:04}-step-{step:06}.pt"


def read_name(name: str) -> tuple[int, int] | None:
    """Return the epochs and steps in the name of a checkpoint, None for another file."""
    match = CHECKPOINT.fullmatch(name)
    return match and (int(match[1]), int(match[2]))


def is_put_aside(name: str) -> bool:
    """Return whether a file is a checkpoint that was put aside because it is damaged."""
    return name.endswith(DAMAGED) and read_name(name[: -len(DAMAGED)]) is not None
