# SPDX-License-Identifier: BSD-3-Clause
"""The tensors of networks and optimizers, which the ranks write together: their names, shapes and division."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata

from training import TrainingError
from training.state import parameters_of, parts_of, state_of
from training.values import encode


def forms_of(run: Any) -> dict[str, Tensor]:
    """Return tensors by the names of those in a checkpoint that have their shape and division.

    A tensor of an optimizer has the form of its parameter, and begins with the name ``optimizer.state.3``.
    """
    forms: dict[str, Tensor] = {}
    for name, subject in parts_of(run).items():
        if isinstance(subject, nn.Module):
            encode(state_of(subject, name), name, forms)
        else:
            forms.update({f"{name}.state.{place}": each for place, each in enumerate(parameters_of(subject))})
    return forms


def find_form(forms: Mapping[str, Tensor], name: str) -> Tensor | None:
    """Return the tensor whose form a tensor of a checkpoint has."""
    return forms.get(name, forms.get(name.rpartition(".")[0]))


def is_divided(tensor: Tensor | None) -> bool:
    """Return whether each rank has a part of a tensor."""
    return hasattr(tensor, "_local_tensor")


def check_forms(run: Any, tensors: Mapping[str, Tensor]) -> None:
    """Raise TrainingError if the parts of a tensor could not be put together as those of its parameter."""
    forms = forms_of(run)
    for name, tensor in tensors.items():
        form = find_form(forms, name)
        if form is not None and form.shape == tensor.shape and is_divided(form) == is_divided(tensor):
            continue
        if is_divided(tensor) or (is_divided(form) and tensor.numel() > 1):
            raise TrainingError(
                f"{name}: its parameter is divided among the ranks, and it has another shape or division. Use an "
                "optimizer whose tensors have the shapes of the parameters"
            )


def new_tensors(run: Any, metadata: Metadata) -> dict[str, Tensor]:
    """Return memory for the tensors of a checkpoint, which is divided as the run is."""
    forms = forms_of(run)
    tensors = {}
    for name, stored in metadata.state_dict_metadata.items():
        form = find_form(forms, name)
        dtype = stored.properties.dtype
        if form is not None and form.shape == stored.size:
            tensors[name] = torch.empty_like(form, dtype=dtype, requires_grad=False)
        else:
            tensors[name] = torch.empty(stored.size, dtype=dtype)
    return tensors
