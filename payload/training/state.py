# SPDX-License-Identifier: BSD-3-Clause
"""The state of a run, and back.

Networks and optimizers have the same state on all ranks (``parts_of``); ``gather_values``, ``check_values`` and
``load_values`` are about everything else, as plain values (see training/values.py).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from training import TrainingError
from training.accelerator import module_of
from training.distributed import fail_together, gather
from training.values import comparable, decode, dump, encode, number, read_back

REMEDY = "choose another directory with --modelpath, or start from scratch with --restart"
COUNTS = ("epoch", "step", "samples", "loss_sum")  # of a position: the same numbers on all ranks
MACHINE_OPTIONS = ("fused", "foreach", "capturable")  # of an optimizer: they depend on the device
COMPILED = "_orig_mod."  # in the names of a module that torch.compile has wrapped
OLDER: dict[str, Any] = {"best": ("accuracy", "max"), "data": None, "extra": [], "each": [{}]}  # not in those of 1.1.0


def inner_network(network: nn.Module) -> nn.Module:
    """Return the network that DistributedDataParallel, DataParallel or torch.compile has wrapped."""
    while True:
        if isinstance(network, (DistributedDataParallel, DataParallel)):
            network = network.module
        elif hasattr(network, "_orig_mod"):
            network = network._orig_mod
        else:
            return network


def is_trained(subject: object) -> bool:
    """Return whether an object has the same state on all ranks: a network or an optimizer."""
    return isinstance(subject, (nn.Module, torch.optim.Optimizer))


def parts_of(run: Any) -> dict[str, nn.Module | torch.optim.Optimizer]:
    """Return network, optimizer, and the networks and optimizers in ``extra``, by their names in a checkpoint."""
    extra = {f"extra[{name!r}]": subject for name, subject in run.extra.items() if is_trained(subject)}
    return {"model": run.network, "optimizer": run.optimizer, **extra}


def own_objects(run: Any) -> dict[str, Any]:
    """Return the objects in ``extra`` of which each rank may have another state."""
    return {name: subject for name, subject in run.extra.items() if not is_trained(subject)}


def check_object(subject: Any, name: str) -> None:
    """Raise TrainingError with ``name`` if an object of ``extra`` has no state."""
    is_generator = hasattr(subject, "bit_generator") or hasattr(subject, "set_state")
    if not is_generator and not hasattr(subject, "load_state_dict"):
        raise TrainingError(f"{name}: {type(subject).__qualname__} has no state_dict() and load_state_dict()")


def state_of(subject: Any) -> Any:
    """Return the state of an object; its tensors are not copied."""
    if isinstance(subject, nn.Module):
        return {name.replace(COMPILED, ""): value for name, value in inner_network(subject).state_dict().items()}
    if hasattr(subject, "bit_generator"):  # a Generator of NumPy
        return subject.bit_generator.state
    if hasattr(subject, "state_dict"):
        return subject.state_dict()
    return subject.get_state()  # a Generator of torch


def load_object(subject: Any, saved: Any) -> None:
    """Set the state of an object; raises the object's error if it does not fit."""
    if isinstance(subject, nn.Module):
        load_network(inner_network(subject), saved)
    elif isinstance(subject, torch.optim.Optimizer):
        load_optimizer(subject, saved)
    elif hasattr(subject, "bit_generator"):
        subject.bit_generator.state = decode(saved)
    elif hasattr(subject, "state_dict"):
        subject.load_state_dict(decode(saved))
    else:
        subject.set_state(decode(saved))


def load_network(network: nn.Module, saved: Mapping[str, Any]) -> None:
    """Copy a saved state to a network; raises torch's RuntimeError if it does not fit."""
    state = network.state_dict()
    names = {name.replace(COMPILED, ""): name for name in state}
    state.clear()  # what is left are the versions of the modules
    for name, value in decode(saved).items():
        state[names.get(name, name)] = value
    network.load_state_dict(state)


def load_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Copy a saved state to an optimizer; raises ValueError if it does not fit.

    Options that depend on the machine, and those that the saved state does not have, stay the run's own.
    """
    groups = decode(saved["param_groups"])
    state = {}
    for group, own, live in zip(groups, optimizer.state_dict()["param_groups"], optimizer.param_groups):
        for name, value in own.items():
            if name in MACHINE_OPTIONS or name not in group:
                group[name] = value
        for place, parameter in zip(group["params"], live["params"]):
            if place in saved["state"]:
                state[place] = optimizer_state(saved["state"][place], parameter, group.get("fused"))
    optimizer.load_state_dict({"state": state, "param_groups": groups})


@torch.no_grad()
def optimizer_state(saved: Mapping[str, Any], parameter: Tensor, is_fused: bool | None) -> dict[str, Any]:
    """Return what an optimizer keeps for a parameter, in new memory with the strides of the parameter."""
    state = {}
    for name, value in saved.items():
        if hasattr(value, "_local_tensor"):  # a DTensor, which was made in the form of the parameter
            state[name] = value
        elif isinstance(value, Tensor) and value.shape == parameter.shape:
            state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        elif isinstance(value, Tensor) and value.dim() and is_fused:  # its step would write beyond the memory
            raise ValueError(f"{name} of its optimizer has shape {[*value.shape]} for a weight {[*parameter.shape]}")
        else:
            state[name] = decode(value)
    return state


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the random states of torch, Python and NumPy on this rank, which computes on ``device``."""
    state = {"cpu": torch.get_rng_state(), "python": random.getstate()}
    if device.type != "cpu":
        state[device.type] = module_of(device).get_rng_state(device)
    if "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state()
    return encode(state, "random state")


def set_random_state(saved: Mapping[str, Any], device: torch.device) -> None:
    """Set the random states of this rank."""
    state = decode(saved)
    torch.set_rng_state(state["cpu"])
    if device.type != "cpu" and device.type in state:
        module_of(device).set_rng_state(state[device.type], device)
    if "python" in state:  # not in a checkpoint of release 1.1.0
        random.setstate(state["python"])
    if "numpy" in state and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(state["numpy"])


def schedule_state(schedule: Any) -> Any:
    """Return the state of a schedule, None without one; its functions, which torch 2.0 has in it, are left out."""
    if schedule is None:
        return None
    return {name: value for name, value in schedule.state_dict().items() if not callable(value)}


def position_numbers(position: Any) -> dict[str, int | float]:
    """Return the numbers of a position, a dataclass; raise TrainingError for a field that is no number."""
    names = [field.name for field in fields(position)]
    return {name: number(getattr(position, name), f"position.{name}") for name in names}


def gather_values(run: Any) -> dict[str, Any] | None:
    """Return, on rank 0, everything but the parts of a run as plain values; all ranks call it.

    Random states and objects of ``extra`` are those of each rank. Raises TrainingError if a count of the position
    differs between ranks: each has counted for itself.
    """
    world = run.world
    with fail_together(world):
        objects = own_objects(run).items()
        values = {
            "position": position_numbers(run.position),
            "schedule": encode(schedule_state(run.schedule), "schedule"),
            "random": random_state(world.device),
            "extra": {name: encode(state_of(subject), f"extra[{name!r}]") for name, subject in objects},
        }
        own = read_back(values, "schedule, extra or random state")
    ranks = gather(own, world) or []
    with fail_together(world):
        for rank, other in enumerate(ranks):
            check_counts(own["position"], other["position"], rank)
    if world.rank > 0:
        return None
    return {
        "settings": run.settings,
        "best": list(run.best),
        "data": run.data,
        "position": own["position"],
        "schedule": own["schedule"],
        "extra": sorted(run.extra),
        "each": [one["extra"] for one in ranks],
        "random": [one["random"] for one in ranks],
    }


def check_counts(first: Mapping[str, Any], other: Mapping[str, Any], rank: int) -> None:
    """Raise TrainingError if a count of a rank's position is not that of rank 0."""
    for name in COUNTS:
        if comparable(first.get(name)) != comparable(other.get(name)):
            raise TrainingError(
                f"position.{name} is {first[name]} on rank 0 and {other[name]} on rank {rank}. Set it to the sum over "
                "all ranks (training.distributed.sum_over_ranks)"
            )


def identity(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what tells a run from others, by names for messages."""
    return {
        **values["settings"],
        "best=": values["best"],
        "extra=": sorted(values["extra"]),
        "schedule=": values["schedule"] is not None,
        "data=": values["data"],
    }


def check_values(path: Path, saved: Mapping[str, Any], run: Any) -> None:
    """Raise TrainingError if the values in ``path`` are of another run."""
    then = identity({**OLDER, **saved})
    now = identity(vars(run))
    if then["data="] is None or now["data="] is None:  # without a fingerprint
        then["data="] = now["data="]
    changed = [name for name in {**now, **then} if comparable(then.get(name)) != comparable(now.get(name))]
    if changed:
        found = [f"{name} {then.get(name)} (now {now.get(name)})" for name in changed[:9]]
        raise TrainingError(f"{path}: written with {', '.join(found)}. Use the same options and data, {REMEDY}")
    for name, most in run.limits.items():
        if saved["position"][name] > most:
            raise TrainingError(f"{path}: {name} {saved['position'][name]} is beyond the end of this run ({most})")


def load_values(saved: Mapping[str, Any], run: Any) -> None:
    """Continue a run with its values, after ``check_values``, and after its parts have been loaded."""
    rank, size, device, _ = run.world
    if run.schedule is not None:
        run.schedule.load_state_dict(decode(saved["schedule"]))
    each = saved.get("each", OLDER["each"])
    for name, subject in own_objects(run).items():
        states = [one[name] for one in each]
        load_object(subject, state_for(states, name, rank, size))
    for name, value in saved["position"].items():
        setattr(run.position, name, value)
    if len(saved["random"]) == size:  # those of other ranks cannot be assigned: the seeds stay
        set_random_state(saved["random"][rank], device)


def state_for(states: list[Any], name: str, rank: int, size: int) -> Any:
    """Return which of the states of an object a rank continues; ValueError if they are of other ranks, and differ."""
    if len(states) == size:
        return states[rank]
    if any(bytes(dump(state)) != bytes(dump(states[0])) for state in states):
        raise ValueError(f"extra {name!r} is of {len(states)} ranks, each with its own, and these are {size} ranks")
    return states[0]
