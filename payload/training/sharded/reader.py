# SPDX-License-Identifier: BSD-3-Clause
"""Reads the shards of a checkpoint with torch.distributed.checkpoint, without trust: it runs no code in them."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.futures import Future

from training.checkpoint import DamagedError, unpack
from training.sharded.manifest import Chunk, Manifest, Stored, open_shard


class ShardReader(FileSystemReader):
    """Reads the tensors that ``manifest`` describes; the pickle ``.metadata`` is not read.

    ``dtypes`` are the types of the run's own tensors, with which the manifest was compared.
    """

    def __init__(self, path: Path, manifest: Manifest, dtypes: dict[str, torch.dtype]):
        super().__init__(path)
        self.manifest = manifest
        self.dtypes = dtypes

    def read_metadata(self, *_arguments, **_options) -> Metadata:
        """Return the manifest as torch's description of a checkpoint."""
        tensors = {name: self.manifest.tensors[name] for name in self.dtypes}
        places = {
            MetadataIndex(name, chunk.offsets, number): chunk
            for name, stored in tensors.items()
            for number, chunk in enumerate(stored.chunks)
        }
        described = {name: make_metadata(stored, self.dtypes[name]) for name, stored in tensors.items()}
        return Metadata(described, storage_data=places, storage_meta=StorageMeta())

    def read_data(self, plan, planner) -> Future:
        """Copy the parts of ``plan`` to the run's own tensors."""
        files: dict[str, int] = {}
        try:
            for item in plan.items:
                chunk = self.storage_data[item.storage_index]
                if chunk.file not in files:
                    files[chunk.file] = open_shard(Path(self.path) / chunk.file, self.manifest.files[chunk.file][0])
                tensor = read_chunk(files[chunk.file], chunk, self.dtypes[item.storage_index.fqn])
                for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths)):
                    tensor = tensor.narrow(dimension, start, length)
                target = planner.resolve_tensor(item).detach()
                target.copy_(tensor)
                planner.commit_tensor(item, target)
        finally:
            for descriptor in files.values():
                os.close(descriptor)
        future = Future()
        future.set_result(None)
        return future


def make_metadata(stored: Stored, dtype: torch.dtype) -> TensorStorageMetadata:
    """Return torch's description of a tensor."""
    chunks = [ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes)) for chunk in stored.chunks]
    return TensorStorageMetadata(TensorProperties(dtype), torch.Size(stored.shape), chunks)


def read_chunk(descriptor: int, chunk: Chunk, dtype: torch.dtype) -> torch.Tensor:
    """Return a part of a tensor; raises DamagedError if the file holds another one."""
    content = os.pread(descriptor, chunk.length, chunk.start)
    while len(content) < chunk.length:  # a read returns at most 2 GiB
        more = os.pread(descriptor, chunk.length - len(content), chunk.start + len(content))
        if not more:
            raise DamagedError(f"{chunk.file} is too short")
        content += more
    tensor = unpack(content)
    if not isinstance(tensor, torch.Tensor):
        raise DamagedError(f"{chunk.file} holds more than tensors")
    if tuple(tensor.shape) != chunk.sizes or tensor.dtype != dtype or tensor.layout != torch.strided:
        raise DamagedError(f"{chunk.file} holds another tensor")
    return tensor
