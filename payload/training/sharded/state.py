# SPDX-License-Identifier: BSD-3-Clause
"""The state of a run as tensors, which the ranks share, and as other values, which all ranks have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from training.checkpoint import OWN_OPTIONS, random_state, set_random_state


def state_of(run) -> tuple[dict, dict]:
    """Return the tensors of a run, as nested dictionaries, and its other values, as JSON can hold them.

    The tensors are those of network and optimizer, not copies, and the random state of this rank. An
    optimizer that has taken no step gets its state by a step with a learning rate of 0.
    """
    network, optimizer = get_state_dict(run.network, run.optimizer)
    optimizer_tensors, optimizer_values = divide(optimizer["state"])
    tensors = {
        "model": network,
        "optimizer": optimizer_tensors,
        "random": {str(run.world.rank): random_state(run.world.device)},
    }
    groups = [
        {name: value for name, value in group.items() if name not in OWN_OPTIONS} for group in optimizer["param_groups"]
    ]
    values = {
        "position": asdict(run.position),
        "settings": dict(run.settings),
        "data": run.data,
        "schedule": run.schedule.state_dict(),
        "optimizer": {"state": optimizer_values, "param_groups": plain(groups)},
    }
    return tensors, values


def divide(state: Mapping) -> tuple[dict, dict]:
    """Return the tensors in nested dictionaries, and the other values, each under its names."""
    tensors, values = {}, {}
    for name, value in state.items():
        if isinstance(value, Mapping):
            tensors[str(name)], values[str(name)] = divide(value)
        elif isinstance(value, torch.Tensor):
            tensors[str(name)] = value
        else:
            values[str(name)] = value
    return tensors, {name: value for name, value in values.items() if value != {}}


def plain(value):
    """Return a value with numbers for tensors of one element, such as a learning rate that is a tensor."""
    if isinstance(value, torch.Tensor):
        return value.item()
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def flat(tensors: Mapping, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in nested dictionaries with the names that torch.distributed.checkpoint gives them."""
    for name, value in tensors.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def apply(run, tensors: Mapping, values: Mapping, file: str) -> None:
    """Continue a run with tensors that were loaded, and values that fit it.

    Raises TrainingError if torch rejects a random state.
    """
    groups = values["optimizer"]["param_groups"]
    state = merge(tensors["optimizer"], values["optimizer"]["state"])
    own = [{name: group[name] for name in OWN_OPTIONS if name in group} for group in run.optimizer.param_groups]
    set_state_dict(
        run.network,
        run.optimizer,
        model_state_dict=tensors["model"],
        optim_state_dict={"state": state, "param_groups": [{**group, **mine} for group, mine in zip(groups, own)]},
    )
    run.schedule.load_state_dict(values["schedule"])
    run.position = replace(run.position, **values["position"])
    random = tensors.get("random", {}).get(str(run.world.rank))
    set_random_state([random] if random else [], run.world.device, file)


def merge(tensors: Mapping, values: Mapping) -> dict:
    """Return what ``divide`` divided."""
    merged = dict(tensors)
    for name, value in values.items():
        merged[name] = merge(merged.get(name, {}), value) if isinstance(value, Mapping) else value
    return merged


class Staging:
    """Copies of a run's tensors in host memory, which the next checkpoint overwrites: pinned if a GPU has them."""

    def __init__(self):
        self.copies: dict[str, torch.Tensor] = {}

    def copy(self, tensors: Mapping, prefix: str = "") -> dict:
        """Return the tensors in nested dictionaries as copies; waits until they are complete."""
        copied = self.start(tensors, prefix)
        if any(tensor.device.type != "cpu" for _, tensor in flat(tensors)):
            torch.accelerator.synchronize()
        return copied

    def start(self, tensors: Mapping, prefix: str) -> dict:
        copied = {}
        for name, tensor in tensors.items():
            place = f"{prefix}{name}"
            if isinstance(tensor, Mapping):
                copied[name] = self.start(tensor, f"{place}.")
                continue
            copied[name] = self.copies[place] = host_copy(tensor, self.copies.get(place))
        return copied


@torch.no_grad()
def host_copy(tensor: torch.Tensor, copy: torch.Tensor | None) -> torch.Tensor:
    """Return a tensor, or this rank's part of it, in host memory, in that of ``copy`` if there is one."""
    local = local_of(tensor.detach())
    if copy is None:
        memory = torch.empty_like(local, device="cpu", pin_memory=local.device.type != "cpu" and local.numel() > 0)
        copy = with_local(tensor, memory)
    local_of(copy).copy_(local, non_blocking=local.device.type != "cpu")
    return copy


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor: the memory itself, without communication."""
    return getattr(tensor, "_local_tensor", tensor)


def with_local(tensor: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """Return a tensor that is divided like ``tensor``, with ``local`` as this rank's part."""
    if not hasattr(tensor, "_local_tensor"):
        return local
    # DTensor.from_local would move the part to the devices of the mesh.
    return type(tensor)(local, tensor._spec, requires_grad=False)
