# SPDX-License-Identifier: BSD-3-Clause
"""The state of a run as tensors, which the ranks share, and as other values, which all ranks have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from training.checkpoint import random_state, set_random_state


def state_of(run) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tensors of a run, as nested dictionaries, and its other values, as JSON can hold them.

    The tensors are those of network and optimizer, not copies, and the random state of this rank. An
    optimizer that has taken no step gets its state by a step with a learning rate of 0.
    """
    network, optimizer = get_state_dict(run.network, run.optimizer)
    tensors: dict[str, Any] = {
        "model": network,
        "optimizer": {},
        "random": {str(run.world.rank): random_state(run.world.device)},
    }
    others = {}
    for name, state in optimizer["state"].items():
        tensors["optimizer"][name] = {key: one for key, one in state.items() if isinstance(one, Tensor)}
        if rest := {key: one for key, one in state.items() if not isinstance(one, Tensor)}:
            others[name] = rest
    groups = [  # a learning rate may be a tensor
        {name: value.item() if isinstance(value, Tensor) else value for name, value in group.items()}
        for group in optimizer["param_groups"]
    ]
    values = {
        "position": asdict(run.position),
        "settings": dict(run.settings),
        "data": run.data,
        "schedule": run.schedule.state_dict(),
        "optimizer": {"state": others, "param_groups": groups},
    }
    return tensors, values


def flat(tensors: Mapping, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in nested dictionaries with the names that torch.distributed.checkpoint gives them."""
    for name, value in tensors.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def apply(run, tensors: Mapping, values: Mapping) -> None:
    """Continue a run with tensors that were loaded, and values that fit it."""
    others = values["optimizer"]["state"]
    state = {name: {**each, **others.get(name, {})} for name, each in tensors["optimizer"].items()}
    set_state_dict(
        run.network,
        run.optimizer,
        model_state_dict=tensors["model"],
        optim_state_dict={"state": state, "param_groups": values["optimizer"]["param_groups"]},
    )
    run.schedule.load_state_dict(values["schedule"])
    run.position = replace(run.position, **values["position"])
    if "random" in tensors:
        set_random_state(tensors["random"][str(run.world.rank)], run.world.device)


@torch.no_grad()
def copy_to_host(tensors: Mapping, copies: dict[str, Tensor], prefix: str = "") -> dict:
    """Return the tensors in nested dictionaries as copies in host memory: in ``copies`` of the call before, if any.

    Those of a GPU are pinned, and complete when its queue is empty.
    """
    copied: dict[str, Any] = {}
    for name, tensor in tensors.items():
        place = f"{prefix}{name}"
        if isinstance(tensor, Mapping):
            copied[name] = copy_to_host(tensor, copies, f"{place}.")
            continue
        # of a DTensor this rank's part: the memory itself, without communication
        local = getattr(tensor.detach(), "_local_tensor", tensor.detach())
        on_gpu = local.device.type != "cpu"
        if place not in copies:
            memory = torch.empty_like(local, device="cpu", pin_memory=on_gpu and local.numel() > 0)
            # DTensor.from_local would move the part to the devices of the mesh
            is_whole = not hasattr(tensor, "_local_tensor")
            copies[place] = memory if is_whole else type(tensor)(memory, tensor._spec, requires_grad=False)
        copied[name] = copies[place]
        getattr(copied[name], "_local_tensor", copied[name]).copy_(local, non_blocking=on_gpu)
    return copied
