# SPDX-License-Identifier: BSD-3-Clause
"""The files of a sharded checkpoint: those of torch.distributed.checkpoint, the values, and checksums of both.

A checkpoint has torch's ``.metadata`` and a ``.distcp`` file of each rank, ``values.pt``, and checksums in the form of
``sha256sum``: ``rank-00001.sha256`` of the files of a rank, ``checkpoint.sha256`` of all others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from training.accelerator import module_of
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


@torch.no_grad()
def copy_to_host(tensor: Tensor, copies: dict[str, Tensor], name: str) -> Tensor:
    """Return a copy in host memory: of ``copies``, else new; of a DTensor the part of this rank is copied."""
    part = getattr(tensor, "_local_tensor", tensor)
    on_gpu = part.device.type != "cpu"
    if name not in copies or copies[name].shape != tensor.shape:
        memory = torch.empty_like(part, device="cpu", pin_memory=on_gpu and part.numel() > 0)
        if part is not tensor:  # DTensor.from_local would move the part to the devices of the mesh
            memory = type(tensor)(memory, tensor._spec, requires_grad=False)
        copies[name] = memory
    getattr(copies[name], "_local_tensor", copies[name]).copy_(part, non_blocking=on_gpu)
    return copies[name]


class ShardWriter(FileSystemWriter):
    """Writes the tensors of this rank to ``path``; on rank 0 then ``values``, and calls ``complete``."""

    def __init__(self, path: Path, world: World, values: bytes | memoryview, complete: Callable, copies: dict):
        super().__init__(path, per_thread_copy_ahead=0)
        self.copies = copies
        self.world = world
        self.values = values
        self.complete = complete

    def stage(self, state_dict: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """Return a copy that the training does not change, in the memory of the copy before: torch allocates twice."""
        copied: dict[str, dict[str, Tensor]] = {}
        for part, tensors in state_dict.items():
            own = self.copies.setdefault(part, {})
            copied[part] = {name: copy_to_host(tensor, own, name) for name, tensor in tensors.items()}
        if self.world.device.type != "cpu":
            module_of(self.world.device).synchronize()
        return copied

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
