# SPDX-License-Identifier: BSD-3-Clause
"""The files of a sharded checkpoint: those of torch.distributed.checkpoint, the values, and checksums of both.

A checkpoint has torch's ``.metadata`` and a ``.distcp`` file of each rank, ``values.pt``, and the checksums of all of
these, in the form of ``sha256sum``, in ``checkpoint.sha256``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.futures import Future

from training.distributed import World
from training.values import in_one_line

VALUES = "values.pt"
CHECKSUMS = "checkpoint.sha256"
PIECE = 2**24  # bytes that are read at a time


def checksum_of(file: Path) -> str:
    """Return the SHA-256 of a file."""
    found = hashlib.sha256()
    with file.open("rb") as content:
        while piece := content.read(PIECE):
            found.update(piece)
    return found.hexdigest()


def list_checksums(directory: Path, names: Iterable[str]) -> str:
    """Return a line with the checksum of each of these files."""
    return "".join(f"{checksum_of(directory / name)}  {name}\n" for name in names)


def find_damage(path: Path, world: World) -> str | None:
    """Return what is wrong with this rank's share of the files of a checkpoint."""
    try:
        text = (path / CHECKSUMS).read_text("ascii")
        if not text.endswith(f"  {VALUES}\n"):  # the last line
            return f"{CHECKSUMS} is too short"
        for line in text[:-1].split("\n")[world.rank :: world.size]:
            checksum, name = line.split("  ")
            if checksum_of(path / name) != checksum:
                return f"wrong checksum of {name}"
    except (FileNotFoundError, ValueError) as error:
        return in_one_line(error)
    return None


def local_part(tensor: Tensor) -> Tensor:
    """Return the part of a DTensor that this rank has; another tensor as it is."""
    return getattr(tensor, "_local_tensor", tensor)


def copy_to_host(tensors: Mapping[str, Tensor], copies: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Copy tensors to host memory, that of ``copies`` where they fit; return the copies by part and name."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name in copies and copies[name].shape == tensor.shape:
            local_part(copies[name]).copy_(local_part(tensor))
        else:
            copies[name] = tensor.to("cpu", copy=True)
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = copies[name]
    return parts


class ShardWriter(FileSystemWriter):
    """Writes copies of the tensors of this rank to ``path``; rank 0 then calls ``complete`` with all checksums."""

    def __init__(self, path: Path, complete: Callable[[str], None]):
        super().__init__(path)
        self.complete = complete

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return the copies; torch would copy them to new memory."""
        return state_dict

    def write_data(self, plan, planner) -> Future[Any]:
        """Write the tensors of this rank; return what was written, and the checksums of the files."""
        try:
            written = super().write_data(plan, planner).wait()
        except RuntimeError as error:  # torch.save hides the reason, such as a full disk: "unexpected pos"
            raise error.__context__ or error from None
        names = {result.storage_data.relative_path for result in written}
        result: Future[Any] = Future()
        result.set_result((written, list_checksums(Path(self.path), names)))
        return result

    def finish(self, metadata: Metadata, results: list[Any]) -> None:
        """Complete the checkpoint, after all ranks have written; only rank 0 calls it."""
        super().finish(metadata, [written for written, _ in results])
        self.complete("".join(checksums for _, checksums in results))
