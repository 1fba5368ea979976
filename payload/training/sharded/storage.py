# SPDX-License-Identifier: BSD-3-Clause
"""The files of a sharded checkpoint: written and read with torch.distributed.checkpoint, and read without trust.

torch's own description, ``.metadata``, is a pickle, which can run code. It is written for other programs; this one
reads its manifest, which is JSON. Of the shards only tensors are read, each with the checksums of its torch.save.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from training import TrainingError
from training.accelerator import module_of
from training.checkpoint import damaged, unpack
from training.files import open_regular, read_file, reading, write_file
from training.sharded.state import copy_to_host, flat

MANIFEST, FORMATS = "manifest.json", (1, 2)  # an older one also has a checksum of each file
MOST_BYTES = 2**30  # of a manifest: a tensor has about 100 for each rank
SHARD = re.compile(r"__\d{1,9}_\d{1,9}\.distcp")  # as torch names them


class Chunk(NamedTuple):
    """A part of a tensor, and its place in a file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int


warnings.filterwarnings("ignore", "TypedStorage is deprecated")  # torch 2.6's own writer uses it


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(path: Path) -> dict:
    """Return the manifest of the checkpoint ``path``; no code in it runs.

    It has the number of ranks that wrote it, "size"; the "values" of the state; and the "tensors": by their names, the
    type, such as float32, the shape, and the parts. Raises UnusableError if the file is missing or changed,
    TrainingError if it cannot be read.
    """
    with reading(path / MANIFEST):
        if not (path / MANIFEST).is_file():
            raise damaged(f"it has no {MANIFEST}")
        content = read_file(path / MANIFEST, MOST_BYTES, follow_links=False)
    try:
        parts = re.fullmatch(r'\{"sha256":"([0-9a-f]{64})","content":(.*)\}\n', content.decode(), re.DOTALL)
        if not parts or digest(parts[2]) != parts[1]:
            raise damaged(f"wrong checksum of {MANIFEST}")
        found = json.loads(parts[2])
        if found["format"] not in FORMATS:
            raise TrainingError(f"{path}: written by a newer version. Use the version that wrote it")
        numbers([found["size"]])
        tensors = {name: decode(*stored) for name, stored in found["tensors"].items()}
        return {"size": found["size"], "values": dict(found["values"]), "tensors": tensors}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise damaged(f"{MANIFEST} is invalid: {type(error).__name__}") from None


def decode(dtype: str, sizes: list, chunks: list) -> tuple[str, tuple[int, ...], list[Chunk]]:
    """Return a tensor of a manifest; ValueError if its parts are not the whole tensor, or are in other files."""
    shape = numbers(sizes)
    parts = [Chunk(numbers(first), numbers(size), file, *numbers(place)) for first, size, file, *place in chunks]
    for chunk in parts:
        is_within = all(start + length <= whole for start, length, whole in zip(chunk.offsets, chunk.sizes, shape))
        if not (len(chunk.offsets) == len(chunk.sizes) == len(shape) and is_within and SHARD.fullmatch(chunk.file)):
            raise ValueError(chunk)
    if sum(math.prod(chunk.sizes) for chunk in parts) != math.prod(shape):
        raise ValueError(shape)
    return str(dtype), shape, parts


def numbers(values: list) -> tuple[int, ...]:
    """Return sizes as a tuple; ValueError if one is not a number from 0 to 2^62."""
    if not all(type(value) is int and 0 <= value < 2**62 for value in values):
        raise ValueError(values)
    return tuple(values)


class ShardWriter(FileSystemWriter):
    """Writes the shard of this rank to ``path``; on rank 0 then the manifest, and calls ``complete``.

    ``values`` are the numbers and texts of the state of ``size`` ranks, ``copies`` is the memory for its tensors.
    """

    def __init__(self, path: Path, values: dict, size: int, copies: dict, complete: Callable):
        # with copies ahead it would wait for the GPU's queue, which has no part in it
        super().__init__(path, per_thread_copy_ahead=0)
        self.values, self.size, self.copies, self.complete = values, size, copies, complete

    def stage(self, state_dict: dict) -> dict:
        """Return a copy of the tensors that the training does not change, for an asynchronous save."""
        copied = copy_to_host(state_dict, self.copies)
        for device in {tensor.device for _, tensor in flat(state_dict) if tensor.device.type != "cpu"}:
            module_of(device).synchronize()
        return copied

    def prepare_local_plan(self, plan):
        """Make the directory, not its parents: if they are missing, they were removed during the run."""
        Path(self.path).mkdir(exist_ok=True)
        return plan

    def write_data(self, plan, planner) -> Future:
        """Write this rank's tensors to one file, and flush it to the disk."""
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:  # torch.save hides the reason, such as a full disk: "unexpected pos"
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Complete the checkpoint, after all ranks have written; only rank 0 calls it."""
        super().finish(metadata, results)
        path = Path(self.path)
        places = {(one.index.fqn, tuple(one.index.offset)): one.storage_data for rank in results for one in rank}
        for name in {place.relative_path for place in places.values()}:
            if not (path / name).exists():
                reason = f"{name} of another rank is missing: the directory is not shared by all nodes"
                raise OSError(errno.ENOENT, reason)
        tensors = {}
        for name, stored in metadata.state_dict_metadata.items():
            chunks = []
            for chunk in stored.chunks:
                place = places[name, tuple(chunk.offsets)]
                chunks.append([chunk.offsets, chunk.sizes, place.relative_path, place.offset, place.length])
            tensors[name] = [str(stored.properties.dtype)[len("torch.") :], stored.size, chunks]
        about = {"format": FORMATS[-1], "values": self.values, "size": self.size}
        text = json.dumps({**about, "tensors": tensors}, separators=(",", ":"))
        write_file(path / MANIFEST, f'{{"sha256":"{digest(text)}","content":{text}}}\n'.encode())
        self.complete()


class ShardReader(FileSystemReader):
    """Reads the tensors that ``manifest`` describes; the pickle ``.metadata`` is not read.

    ``dtypes`` are the types of the run's own tensors, with which the manifest was compared.
    """

    def __init__(self, path: Path, manifest: dict, dtypes: dict[str, torch.dtype]):
        super().__init__(path)
        self.manifest, self.dtypes = manifest, dtypes

    def read_metadata(self, *_arguments, **_options) -> Metadata:
        """Return the manifest as torch's description of a checkpoint."""
        described, places = {}, {}
        for name, dtype in self.dtypes.items():
            _, shape, parts = self.manifest["tensors"][name]
            chunks = [ChunkStorageMetadata(torch.Size(one.offsets), torch.Size(one.sizes)) for one in parts]
            described[name] = TensorStorageMetadata(TensorProperties(dtype), torch.Size(shape), chunks)
            places.update({MetadataIndex(name, one.offsets, at): one for at, one in enumerate(parts)})
        return Metadata(described, storage_data=places, storage_meta=StorageMeta())

    def read_data(self, plan, planner) -> Future:
        """Copy the parts of ``plan`` to the run's own tensors."""
        for item in plan.items:
            chunk = self.storage_data[item.storage_index]
            tensor = read_chunk(Path(self.path), chunk, self.dtypes[item.storage_index.fqn])
            for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths)):
                tensor = tensor.narrow(dimension, start, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(tensor)
            planner.commit_tensor(item, target)
        future = Future()
        future.set_result(None)
        return future


def read_chunk(path: Path, chunk: Chunk, dtype: torch.dtype) -> torch.Tensor:
    """Return a part of a tensor of the checkpoint ``path``; UnusableError if the file holds another one."""
    file = path / chunk.file
    with reading(file):
        if not file.is_file():
            raise damaged(f"{chunk.file} is missing")
    with reading(file), open_regular(file, follow_links=False) as shard:
        if os.fstat(shard.fileno()).st_size < chunk.start + chunk.length:
            raise damaged(f"{chunk.file}: too short")
        shard.seek(chunk.start)
        tensor = unpack(shard.read(chunk.length), f"{chunk.file}: ")
    if not isinstance(tensor, torch.Tensor) or tuple(tensor.shape) != chunk.sizes or tensor.dtype != dtype:
        raise damaged(f"{chunk.file} holds another tensor")
    return tensor
