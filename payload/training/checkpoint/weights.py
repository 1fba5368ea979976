"""The trained weights alone: saved, and loaded with or without the prefixes of wrappers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from training import TrainingError
from training.checkpoint.writing import serialise, write


def save_model(state: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write ``state`` to ``path`` for ``torch.load``, as CPU tensors, as ``write`` does."""
    write(path, serialise({name: tensor.cpu() for name, tensor in state.items()}))


def load_model(network: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Give ``network`` the weights in ``state``, with or without the prefixes of what it was wrapped in.

    Those are of DistributedDataParallel and torch.compile; ``network`` may be wrapped in the first
    or not. Raises TrainingError where they are of another network.
    """
    if isinstance(network, DistributedDataParallel):
        network = network.module
    try:
        network.load_state_dict(without_prefixes(state))
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip()
        raise TrainingError(
            f"the weights are of another network ({first}); start with the options and the program "
            "that they were made with"
        ) from None


def without_prefixes(state):
    """Return ``state`` by the names of the network that DistributedDataParallel or torch.compile wrapped."""
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        return state
    for prefix in ("module.", "_orig_mod.", "module."):  # either may be around the other
        if state and all(name.startswith(prefix) for name in state):
            state = {name[len(prefix) :]: tensor for name, tensor in state.items()}
    return state
