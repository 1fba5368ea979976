# SPDX-License-Identifier: BSD-3-Clause
"""Writes the shards of a checkpoint with torch.distributed.checkpoint, and checks what is on the disk."""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import Metadata
from torch.futures import Future

from training.files import sync_directory, write_file
from training.sharded.manifest import MANIFEST, Chunk, Manifest, Stored, checksum_of, encode


class Written(NamedTuple):
    """What a rank wrote: torch's results, and the size and the CRC-32 of each file."""

    results: list
    files: dict[str, tuple[int, int]]


class ShardWriter(FileSystemWriter):
    """Writes the shards of this rank to ``path``; on rank 0 then the manifest, and calls ``complete``.

    ``values`` are the numbers and texts of the state, ``stage`` copies its tensors before an asynchronous save.
    """

    def __init__(self, path: Path, values: dict, size: int, stage: Callable, complete: Callable):
        super().__init__(path)
        self.fs = CheckedFiles()
        self.values = values
        self.size = size
        self.copy_tensors = stage
        self.complete = complete

    def stage(self, state_dict: dict) -> dict:
        """Return a copy of the tensors that the training does not change."""
        return self.copy_tensors(state_dict)

    def write_data(self, plan, planner) -> Future:
        """Write this rank's shards, flush them to the disk, and read them back from there."""
        try:
            results = super().write_data(plan, planner).value()
            names = {result.storage_data.relative_path for result in results}
            files = {name: (size, checksum) for name, size, checksum in self.fs.written if name in names}
            for name, (size, checksum) in files.items():
                read_back(Path(self.path) / name, size, checksum)
        except Exception:
            # torch.save reports a full disk as "unexpected pos"
            if self.fs.fault:
                raise self.fs.fault from None
            raise
        for name in {name for name, *_ in self.fs.written} - names:
            (Path(self.path) / name).unlink(missing_ok=True)  # a rank without a shard writes an empty file
        sync_directory(Path(self.path))
        future = Future()
        future.set_result(Written(results, files))
        return future

    def finish(self, metadata: Metadata, results: list[Written]) -> None:
        """Complete the checkpoint, after all ranks have written; only rank 0 calls it."""
        super().finish(metadata, [written.results for written in results])
        path = Path(self.path)
        files = {name: numbers for written in results for name, numbers in written.files.items()}
        for name, (size, _) in files.items():
            if not (path / name).exists() or (path / name).stat().st_size != size:
                reason = f"{name} of another rank is missing: the directory is not shared by all nodes"
                raise OSError(errno.ENOENT, reason)
        tensors = locate_tensors(metadata, results)
        write_file(path / MANIFEST, encode(Manifest(tensors, self.values, files, self.size, str(torch.__version__))))
        self.complete()


class CheckedFiles(FileSystem):
    """Opens files whose checksum is computed while they are written; ``fault`` is the error of a write."""

    def __init__(self):
        self.written: list[tuple[str, int, int]] = []
        self.fault: OSError | None = None

    def mkdir(self, path) -> None:
        """Make the directory of a checkpoint, not its parents: one that is missing was removed during the run."""
        Path(path).mkdir(exist_ok=True)

    @contextmanager
    def create_stream(self, path, mode: str):
        with super().create_stream(path, mode) as stream:
            if mode != "wb":
                yield stream
                return
            checked = CheckedStream(stream, self)
            yield checked
        self.written.append((Path(path).name, checked.size, checked.checksum))


class CheckedStream:
    """A file that is open for writing: the part of it that torch uses."""

    def __init__(self, stream, files: CheckedFiles):
        self.stream = stream
        self.files = files
        self.size = self.checksum = 0

    def write(self, content) -> int:
        content = memoryview(content).cast("B")
        self.watch(self.stream.write, content)
        self.checksum = zlib.crc32(content, self.checksum)
        self.size += len(content)
        return len(content)

    def flush(self) -> None:
        self.watch(self.stream.flush)

    def watch(self, call: Callable, *arguments) -> None:
        try:
            call(*arguments)
        except OSError as error:
            self.files.fault = error
            raise

    def tell(self) -> int:
        return self.size

    def fileno(self) -> int:
        return self.stream.fileno()

    def close(self) -> None:
        self.watch(self.stream.close)


def read_back(path: Path, size: int, checksum: int) -> None:
    """Raise OSError if a file on the disk differs from what was written."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Read it from the disk, not from the page cache.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if os.fstat(descriptor).st_size != size or checksum_of(descriptor) != checksum:
            raise OSError(errno.EIO, "the file on the disk differs from what was written")
    finally:
        os.close(descriptor)


def locate_tensors(metadata: Metadata, results: list[Written]) -> dict[str, Stored]:
    """Return the tensors of a checkpoint, with the place of each part."""
    places = {
        (result.index.fqn, tuple(result.index.offset)): result.storage_data
        for written in results
        for result in written.results
    }
    tensors = {}
    for name, stored in metadata.state_dict_metadata.items():
        chunks = []
        for chunk in stored.chunks:
            place = places[name, tuple(chunk.offsets)]
            chunks.append(
                Chunk(tuple(chunk.offsets), tuple(chunk.sizes), place.relative_path, place.offset, place.length)
            )
        tensors[name] = Stored(dtype_name(stored.properties.dtype), tuple(stored.size), tuple(chunks))
    return tensors


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a type, such as float32."""
    return str(dtype).removeprefix("torch.")
