# SPDX-License-Identifier: BSD-3-Clause
"""The networks and optimizers of a run: large tensors, which the ranks write together, and plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata

from training import TrainingError
from training.state import load_object, load_values, parts_of, state_of
from training.values import encode

if TYPE_CHECKING:
    from training.checkpoint import Run

TENSOR = "training.tensor"  # in place of a tensor among the values: its name in the checkpoint


def take_tensors(state: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return ``state`` with names in place of the tensors in its dictionaries, which are moved to ``tensors``."""
    if isinstance(state, Tensor):
        tensors[name] = state.detach()
        return {TENSOR: name}
    if type(state) is dict:
        return {key: take_tensors(value, f"{name}.{key}", tensors) for key, value in state.items()}
    return state


def put_tensors(state: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return ``state`` with the tensors that ``take_tensors`` moved."""
    if type(state) is not dict:
        return state
    if TENSOR in state:
        return tensors[state[TENSOR]]
    return {key: put_tensors(value, tensors) for key, value in state.items()}


def forms_of(run: Run) -> dict[str, Tensor]:
    """Return tensors by the names of those in a checkpoint that have their shape and division.

    A tensor of an optimizer has the form of its parameter, and begins with the name ``optimizer.state.3``.
    """
    forms: dict[str, Tensor] = {}
    for name, subject in parts_of(run).items():
        if isinstance(subject, nn.Module):
            take_tensors(state_of(subject), name, forms)
            continue
        groups = [group["params"] for group in subject.param_groups]
        for place, parameter in enumerate(parameter for group in groups for parameter in group):
            forms[f"{name}.state.{place}"] = parameter
    return forms


def find_form(forms: Mapping[str, Tensor], name: str) -> Tensor | None:
    """Return the tensor whose form a tensor of a checkpoint has."""
    return forms.get(name, forms.get(name.rpartition(".")[0]))


def is_divided(tensor: Tensor | None) -> bool:
    """Return whether each rank has a part of a tensor."""
    return hasattr(tensor, "_local_tensor")


def split_parts(run: Run) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Return the tensors of networks and optimizers by part and name, and everything else of them as plain values."""
    tensors = {}
    values = {}
    forms = forms_of(run)
    for part, subject in parts_of(run).items():
        own: dict[str, Tensor] = {}
        values[part] = encode(take_tensors(state_of(subject), part, own), part)
        for name, tensor in own.items():
            check_form(name, tensor, find_form(forms, name))
        if own:  # torch.distributed.checkpoint would store an empty dictionary as an object
            tensors[part] = {name[len(part) + 1 :]: tensor for name, tensor in own.items()}
    return tensors, values


def check_form(name: str, tensor: Tensor, form: Tensor | None) -> None:
    """Raise TrainingError if the parts of a tensor could not be put together as those of its parameter."""
    if form is not None and form.shape == tensor.shape and is_divided(form) == is_divided(tensor):
        return
    if is_divided(tensor) or (is_divided(form) and tensor.numel() > 1):
        raise TrainingError(
            f"{name}: its parameter is divided among the ranks, and it has another shape or division. Use an optimizer "
            "whose tensors have the shapes of the parameters"
        )


def new_tensors(run: Run, metadata: Metadata) -> dict[str, Tensor]:
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


def load_run(run: Run, tensors: dict[str, Tensor], saved: Mapping[str, Any]) -> None:
    """Continue a run with tensors and values that were read; raises torch's errors if a part does not fit."""
    for part, subject in parts_of(run).items():
        load_object(subject, put_tensors(saved["parts"][part], tensors))
    load_values(saved, run)
