# SPDX-License-Identifier: BSD-3-Clause
"""The files of a sharded checkpoint: those of torch.distributed.checkpoint, the values, and checksums of both.

A checkpoint has torch's ``.metadata`` and a ``.distcp`` file of each rank, ``values.pt``, and checksums in the form of
``sha256sum``: ``rank-00001.sha256`` of the files of a rank, ``checkpoint.sha256`` of all others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from training.distributed import World
from training.files import write_file

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


def write_checksums(file: Path, names: Iterable[str]) -> None:
    """Write the checksums of files that are beside ``file``."""
    lines = [f"{checksum_of(file.parent / name)}  {name}\n" for name in names]
    write_file(file, "".join(lines).encode())


def read_checksums(file: Path) -> dict[str, str]:
    """Return checksums by the names of the files; raises ValueError if the list is damaged."""
    lines = file.read_text("ascii").splitlines()
    return {name: checksum for checksum, name in (line.split("  ") for line in lines)}


def find_damage(path: Path, world: World) -> str | None:
    """Return what is wrong with this rank's share of the files of a checkpoint."""
    try:
        checksums = read_checksums(path / CHECKSUMS)
        if VALUES not in checksums:  # the last line
            return f"{CHECKSUMS} is too short"
        for name in list(checksums):
            if name.endswith(".sha256"):
                checksums.update(read_checksums(path / name))
        for name in sorted(checksums)[world.rank :: world.size]:
            if checksum_of(path / name) != checksums[name]:
                return f"wrong checksum of {name}"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except ValueError:
        return "wrong checksums"
    return None


class ShardWriter(FileSystemWriter):
    """Writes the tensors of this rank to ``path``; on rank 0 then ``values``, and calls ``complete``."""

    def __init__(self, path: Path, world: World, values: bytes | memoryview, complete: Callable[[], None]):
        super().__init__(path)
        self.world = world
        self.values = values
        self.complete = complete

    def write_data(self, plan, planner) -> Future[list[WriteResult]]:
        """Write the tensors of this rank, and the checksums of its files."""
        try:
            written = super().write_data(plan, planner)
        except RuntimeError as error:  # torch.save hides the reason, such as a full disk: "unexpected pos"
            raise error.__context__ or error from None
        names = {result.storage_data.relative_path for result in written.wait()}
        write_checksums(Path(self.path) / f"rank-{self.world.rank:05}.sha256", names)
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Complete the checkpoint, after all ranks have written; only rank 0 calls it."""
        super().finish(metadata, results)
        path = Path(self.path)
        write_file(path / VALUES, self.values)
        lists = [f"rank-{rank:05}.sha256" for rank in range(self.world.size)]
        write_checksums(path / CHECKSUMS, [".metadata", *lists, VALUES])
        self.complete()
