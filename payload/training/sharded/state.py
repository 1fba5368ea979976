# SPDX-License-Identifier: BSD-3-Clause
"""The tensors of networks and optimizers, which the ranks write together: their names, shapes and division."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.tensor import DTensor

from training import TrainingError
from training.state import parameters_of, parts_of, state_of
from training.values import encode


def forms_of(run: Any, names: Iterable[str]) -> dict[str, Tensor | None]:
    """Return, for the names of a checkpoint's tensors, the tensors of a run that have their shape and division.

    A tensor of an optimizer has the form of its parameter, whose place is in the name: ``optimizer.state.3.exp_avg``.
    """
    forms: dict[str, Tensor] = {}
    for part, subject in parts_of(run).items():
        if isinstance(subject, nn.Module):
            encode(state_of(subject, part), part, forms)
        else:
            for place, parameter in enumerate(parameters_of(subject)):
                forms[f"{part}.state.{place}"] = parameter
    return {name: forms.get(name, forms.get(name.rpartition(".")[0])) for name in names}


def divided_shape(tensor: Tensor | None) -> torch.Size | None:
    """Return the shape of a tensor of which each rank has a part; None for others."""
    return tensor.shape if isinstance(tensor, DTensor) else None


def check_forms(run: Any, tensors: Mapping[str, Tensor]) -> None:
    """Raise TrainingError if the parts of a tensor could not be put together as those of its parameter."""
    for name, form in forms_of(run, tensors).items():
        tensor = tensors[name]
        if divided_shape(tensor) != divided_shape(form) and tensor.numel() > 1:
            raise TrainingError(
                f"{name}: its parameter is divided among the ranks, and it has another shape or division. Use an "
                "optimizer whose tensors have the shapes of the parameters"
            )


def new_tensors(run: Any, metadata: Metadata) -> dict[str, Tensor]:
    """Return memory for the tensors of a checkpoint, which is divided as the run is."""
    tensors = {}
    stored = metadata.state_dict_metadata
    for name, form in forms_of(run, stored).items():
        size = stored[name].size
        dtype = stored[name].properties.dtype
        if divided_shape(form) == size:
            tensors[name] = torch.empty_like(form, dtype=dtype)
        else:
            tensors[name] = torch.empty(size, dtype=dtype)
    return tensors
