# SPDX-License-Identifier: BSD-3-Clause
"""The text of a training as bytes in memory, and the order of its windows, the same for any number of ranks."""

from __future__ import annotations

import hashlib
import os
import platform
import sysconfig
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from training import TrainingError
from training.distributed import World, broadcast, fail_together
from training.files import kind_of
from training.metrics import METRICS_FILE

HELD_OUT = 20  # one part of so many is for validation
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}  # of the standard library
HASHED_BLOCKS, BLOCK_BYTES = 64, 2**16  # of the fingerprint
ROUNDS = 4  # of the Feistel network; Luby and Rackoff 1988: four make a permutation that looks random


class Text(NamedTuple):
    """The bytes of a text, mapped into memory, uint8: those to train on, and those held out."""

    name: str
    training: Tensor
    validation: Tensor
    fingerprint: str


def open_text(data: Path | None, modelpath: Path | None, context: int, world: World) -> Text:
    """Return the text of --data, by default the source of Python's standard library; all ranks must call it.

    A file is mapped where it is. Rank 0 reads the files of a directory, with a zero byte after each, and sends them to
    the others. Raises TrainingError if there is no text, or less than a window of ``context`` bytes in a part, if a
    rank cannot see the file, or if the ranks see different texts.
    """
    name = str(data or f"source of Python {platform.python_version()}'s standard library")
    tokens = torch.empty(0, dtype=torch.uint8)
    with fail_together(world):
        is_file = data is not None and data.is_file()
        if data and is_file:
            tokens = map_file(data)
        elif world.rank == 0:
            tokens = join_files(source_files(data, modelpath))
    size, is_sent = broadcast((len(tokens), not is_file), world)
    if is_sent and world.size > 1:
        tokens = tokens if world.rank == 0 else torch.empty(size, dtype=torch.uint8)
        dist.broadcast(tokens, src=0, group=world.host_group)
    mark = fingerprint(tokens)
    expected = broadcast(mark, world)
    with fail_together(world):
        if mark != expected:
            raise TrainingError(
                f"{name}: {platform.node()} has another text than rank 0. Use --data with a file that all nodes share"
            )
        start = len(tokens) - len(tokens) // HELD_OUT
        if not count_windows(tokens[start:], context):
            least = HELD_OUT * (context + 1)
            raise TrainingError(f"{name}: {len(tokens)} bytes, at least {least} are needed for --context {context}")
    return Text(name, tokens[:start], tokens[start:], mark)


def source_files(data: Path | None, modelpath: Path | None = None) -> list[Path]:
    """Return the regular files of the text, sorted; hidden ones, and the run's own, are left out.

    Without ``data`` they are the modules of Python's standard library, without its tests. Raises TrainingError, also
    for a directory or a file that cannot be read: no part of a text is left out in silence.
    """
    root, own = data or Path(sysconfig.get_path("stdlib")), modelpath and modelpath.resolve()
    if data and not root.is_dir():
        raise TrainingError(f"{root}: {what_it_is(root)}. Name a text with --data: a file or a directory")
    if data and own == root.resolve():
        raise TrainingError(f"{root}: --modelpath is the directory of the text. Choose another one, which may be in it")
    found = []
    for folder, folders, names in os.walk(root, onerror=raise_unreadable if data else None):
        paths = [path for path in map(Path(folder).joinpath, [*folders, *names]) if is_text(path, data)]
        # what os.walk follows; a link to a directory is an error below
        folders[:] = [path.name for path in paths if path.is_dir() and not path.is_symlink() and path.resolve() != own]
        found += [path for path in paths if path.is_symlink() or not path.is_dir()]
    for path in found:
        if not path.is_file():
            raise TrainingError(f"{path}: {what_it_is(path)}. Remove it from the text, or name one file with --data")
    if not found:
        what = "Python's source is not installed there" if data is None else "no files"
        raise TrainingError(f"{root}: {what}. Name a text with --data FILE")
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def is_text(path: Path, data: Path | None) -> bool:
    """Return whether a file, or a directory, belongs to the text."""
    if data is None:
        return path.name not in LEFT_OUT and (path.suffix == ".py" or (path.is_dir() and not path.is_symlink()))
    marks = "text.bin", METRICS_FILE, "checkpoints/best.pt"
    is_run = (path / "checkpoints").is_dir() and any((path / name).is_file() for name in marks)
    # another training, or a search, that wrote below the text, and traces of --profile
    return not (is_run or (path / "study.journal").is_file() or path.name.startswith((".", "trace-rank-")))


def raise_unreadable(error: OSError) -> NoReturn:
    raise TrainingError(f"{error.filename}: cannot be read ({error.strerror}). Check its permissions, or remove it")


def what_it_is(path: Path) -> str:
    """Return why ``path`` is no text, for a message."""
    try:
        return f"{'a link to ' * path.is_symlink()}{kind_of(path.resolve())}, not a regular file"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def join_files(files: list[Path]) -> Tensor:
    """Return the bytes of ``files``, with a zero byte after each."""
    try:
        joined = bytearray().join(path.read_bytes() + b"\0" for path in files)
    except OSError as error:
        raise_unreadable(error)
    return torch.frombuffer(joined, dtype=torch.uint8)


def map_file(path: Path) -> Tensor:
    """Return the bytes of a file, mapped into memory and read when they are used; raises TrainingError."""
    try:
        size = path.stat().st_size
        return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise TrainingError(
            f"{path}: cannot be read on {platform.node()} ({reason}). All nodes must see it: choose a shared directory"
        ) from None


def fingerprint(tokens: Tensor) -> str:
    """Return a hash of the length of a text and of blocks all over it."""
    found = hashlib.sha256(b"%d" % len(tokens))
    step = max(BLOCK_BYTES, len(tokens) // HASHED_BLOCKS)
    for start in range(0, len(tokens), step):
        found.update(bytes(tokens[start : start + BLOCK_BYTES].tolist()))
    return found.hexdigest()


def count_windows(tokens: Tensor, context: int) -> int:
    """Return how many windows of ``context`` bytes, each with the byte after it, a text has."""
    return max(0, len(tokens) - 1) // context


def load_windows(text: Tensor, windows: list[int | None], context: int, device: torch.device) -> list[Tensor]:
    """Return the bytes of ``windows``, and the byte after each of them, int64 [n, context], on the device.

    Where a window is None, the labels are -100, which the loss leaves out:
    https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    """
    parts = [text[window * context : (window + 1) * context + 1].long() for window in (each or 0 for each in windows)]
    both = torch.stack([part[:-1] for part in parts]), torch.stack([part[1:] for part in parts])
    both[1][[window is None for window in windows]] = -100
    if device.type == "cpu":
        return list(both)
    return [tensor.pin_memory(device).to(device, non_blocking=True) for tensor in both]


def permute(place: int, count: int, key: bytes) -> int:
    """Return the number at ``place`` in a shuffled order of ``range(count)``, which ``key`` decides.

    A Feistel network shuffles the numbers of an even number of bits. Numbers beyond ``count`` are shuffled
    again until one is below it (https://en.wikipedia.org/wiki/Format-preserving_encryption, "cycle walking").
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for number in range(ROUNDS):
            text = b"%d %d" % (number, right)
            digest = hashlib.blake2b(text, digest_size=8, key=key).digest()
            left, right = right, left ^ (int.from_bytes(digest, "big") & mask)
        place = left << half | right
        if place < count:
            return place


def window_at(position: int, count: int, seed: int) -> int:
    """Return the window, of ``count``, that a training takes after ``position`` others.

    Every pass over the text takes each window once, in an order of its own.
    """
    number, place = divmod(position, count)
    return permute(place, count, b"%d %d" % (seed, number))


def own_share(position: int, batch_size: int, rank: int, size: int) -> list[int | None]:
    """Return the positions that this rank takes of the global batch at ``position``.

    All ranks have the same number: where a batch cannot be divided evenly, the last of some ranks is None.
    """
    most = -(-batch_size // size)
    places = range(rank, most * size, size)
    return [position + place if place < batch_size else None for place in places]
