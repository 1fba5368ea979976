# SPDX-License-Identifier: BSD-3-Clause
"""The files of a sharded checkpoint: those of torch.distributed.checkpoint, the values, and checksums of both.

A checkpoint has torch's ``.metadata`` and a ``.distcp`` file of each rank, ``values.pt``, and the checksums of all of
these, in the form of ``sha256sum``, in ``checkpoint.sha256``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import FileSystemWriter
from torch.futures import Future

VALUES = "values.pt"
CHECKSUMS = "checkpoint.sha256"


def checksum_line(file: Path) -> str:
    """Return the SHA-256 and the name of a file, as ``sha256sum`` prints them."""
    found = hashlib.sha256()
    with file.open("rb") as content:
        while piece := content.read(2**24):
            found.update(piece)
    return f"{found.hexdigest()}  {file.name}\n"


class ShardWriter(FileSystemWriter):
    """Writes copies of the tensors of this rank to ``path``; rank 0 then calls ``complete`` with all checksums.

    ``copies`` are those of the checkpoint before, by name, in host memory.
    """

    def __init__(self, path: Path, complete: Callable[[str], None], copies: dict):
        super().__init__(path)
        self.complete = complete
        self.copies = copies

    def stage(self, state_dict):
        """Return copies of tensors by part and name; new memory takes several times as long as that of ``copies``."""
        parts = {}
        for name, tensor in state_dict.items():
            copy = self.copies.get(name)
            if copy is None or (copy.shape, copy.dtype) != (tensor.shape, tensor.dtype):
                self.copies[name] = tensor.to("cpu", copy=True)
            else:
                copy.copy_(tensor)
            part, _, rest = name.partition(".")
            parts.setdefault(part, {})[rest] = self.copies[name]
        return parts

    def write_data(self, plan, planner) -> Future[Any]:
        """Write the tensors of this rank; return what was written, and the checksums of the files."""
        written = super().write_data(plan, planner).value()
        names = {result.storage_data.relative_path for result in written}
        result: Future[Any] = Future()
        result.set_result((written, "".join(checksum_line(self.path / name) for name in names)))
        return result

    def finish(self, metadata, results):
        """Complete the checkpoint, after all ranks have written; only rank 0 calls it."""
        written, checksums = zip(*results)
        super().finish(metadata, list(written))
        self.complete("".join(checksums))
