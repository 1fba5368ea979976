# SPDX-License-Identifier: BSD-3-Clause
"""Writes a state as a file that torch.load reads, and saves and loads the weights of a network."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from training import TrainingError
from training.files import remedy_for, write_file
from training.resuming import without_prefixes


def serialise(state: Mapping) -> memoryview:
    """Return the bytes of a file from which ``torch.load`` reads ``state``."""
    content = io.BytesIO()  # torch.save to a full disk hides the reason: "unexpected pos"
    torch.save(dict(state), content)
    return content.getbuffer()


def write(path: Path, content: memoryview) -> None:
    """Write ``content`` to ``path`` with ``write_file``; TrainingError on a failure."""
    try:
        write_file(path, content)
    except OSError as error:
        raise TrainingError(f"{path}: cannot be written ({error.strerror}). {remedy_for(error)}") from error


def save_model(state: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write the weights ``state`` to ``path`` as CPU tensors, completely or not at all."""
    write(path, serialise({name: tensor.cpu() for name, tensor in state.items()}))


def load_model(network: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Load the weights ``state`` into ``network``; either may be wrapped in DistributedDataParallel.

    Names in ``state`` may also have the prefix of torch.compile. Raises TrainingError if the weights
    are of another network.
    """
    if isinstance(network, DistributedDataParallel):
        network = network.module
    try:
        network.load_state_dict(without_prefixes(state))
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip()
        raise TrainingError(
            f"the weights are of another network ({first}). Use the program and the options that wrote them"
        ) from None
