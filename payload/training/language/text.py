# SPDX-License-Identifier: BSD-3-Clause
"""The text of a training as bytes in memory, and the order of its windows, the same for any number of ranks."""

from __future__ import annotations

import hashlib
import math
import platform
import sysconfig
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from training import TrainingError
from training.distributed import World, broadcast, fail_together
from training.schedule import epoch_order
from training.values import in_one_line

HELD_OUT = 20  # one part of so many is for validation
LEFT_OUT = ("site-packages", "dist-packages", "test")  # of the standard library
SAMPLES = 2**20  # bytes of the fingerprint


class Text(NamedTuple):
    """The bytes of a text, mapped into memory, uint8: those to train on, and those held out."""

    name: str
    training: Tensor
    validation: Tensor
    fingerprint: str


def open_text(data: Path | None, context: int, world: World) -> Text:
    """Return the text of --data, by default the source of Python's standard library; all ranks must call it.

    Raises TrainingError if there is no text, or less than a window of ``context`` bytes in a part, or if the ranks see
    different texts.
    """
    name = str(data or f"source of Python {platform.python_version()}'s standard library")
    with fail_together(world):
        tokens = read_text(data)
    own_fingerprint = fingerprint(tokens)
    expected = broadcast(own_fingerprint, world)
    start = len(tokens) - len(tokens) // HELD_OUT
    with fail_together(world):
        if own_fingerprint != expected:
            raise TrainingError(
                f"{name}: {platform.node()} has another text than rank 0. Use --data with a file that all nodes share"
            )
        if not count_windows(tokens[start:], context):
            least = HELD_OUT * (context + 1)
            raise TrainingError(f"{name}: {len(tokens)} bytes, at least {least} are needed for --context {context}")
    return Text(name, tokens[:start], tokens[start:], own_fingerprint)


def read_text(data: Path | None) -> Tensor:
    """Return the bytes of a file, mapped into memory, or of the standard library's modules; raises TrainingError."""
    if not data:
        joined = b"".join(path.read_bytes() + b"\0" for path in source_files())
        return torch.frombuffer(bytearray(joined), dtype=torch.uint8)
    try:
        return torch.from_file(str(data), shared=False, size=data.stat().st_size, dtype=torch.uint8)
    except (OSError, RuntimeError) as error:
        raise TrainingError(f"{data}: cannot be read on {platform.node()} ({in_one_line(error)})") from None


def source_files() -> list[Path]:
    """Return the modules of Python's standard library, sorted, without its tests; TrainingError without any."""
    root = Path(sysconfig.get_path("stdlib")).resolve()
    found = [path for path in sorted(root.rglob("*.py")) if path.relative_to(root).parts[0] not in LEFT_OUT]
    if not found:
        raise TrainingError(f"{root}: no source of Python. Name a text with --data")
    return found


def fingerprint(tokens: Tensor) -> str:
    """Return a hash of the length of a text and of SAMPLES bytes all over it."""
    sample = tokens[:: math.ceil(len(tokens) / SAMPLES)].tolist()
    return hashlib.sha256(b"%d" % len(tokens) + bytes(sample)).hexdigest()


def count_windows(tokens: Tensor, context: int) -> int:
    """Return how many windows of ``context`` bytes, each with the byte after it, a text has."""
    return max(0, len(tokens) - 1) // context


def load_windows(text: Tensor, windows: list[int | None], context: int, device: torch.device) -> list[Tensor]:
    """Return the bytes of ``windows``, and the byte after each of them, int64 [n, context], on the device.

    Where a window is None, the labels are -100, which the loss leaves out:
    https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    """
    starts = [(window or 0) * context for window in windows]
    parts = torch.stack([text[start : start + context + 1] for start in starts]).to(device).long()
    labels = parts[:, 1:].contiguous()
    labels[[window is None for window in windows]] = -100
    return [parts[:, :-1], labels]


order_of_pass = lru_cache(maxsize=2)(epoch_order)  # a batch may begin in one pass and end in the next


def window_at(position: int, count: int, seed: int) -> int:
    """Return the window, of ``count``, that a training takes after ``position`` others.

    Every pass over the text takes each window once, in an order of its own.
    """
    number, place = divmod(position, count)
    return int(order_of_pass(count, seed, number)[place])


def own_share(windows: list[int], world: World, tensor: int) -> list[int | None]:
    """Return the windows of a global batch that a rank takes; ``tensor`` consecutive ranks take the same.

    All ranks have the same number: where a batch cannot be divided evenly, the last of some ranks is None.
    """
    shares = world.size // tensor
    missing = -len(windows) % shares
    return [*windows, *[None] * missing][world.rank // tensor :: shares]
