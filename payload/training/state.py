# SPDX-License-Identifier: BSD-3-Clause
"""The state of a run, and back, as plain values (see training/values.py).

Networks and optimizers have the same state on all ranks; each rank may have another state of other objects.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from training import TrainingError
from training.distributed import World, fail_together, gather
from training.values import comparable, decode, dump, encode, number, read_back

REMEDY = "choose another directory with --modelpath, or start from scratch with --restart"
COUNTS = ("epoch", "step", "samples", "loss_sum")  # of a position: the same numbers on all ranks
MACHINE_OPTIONS = ("fused", "foreach", "capturable")  # of an optimizer: they depend on the device
COMPILED = "_orig_mod."  # in the names of a module that torch.compile has wrapped
OLDER = {"best": ("accuracy", "max"), "data": None, "extra": ()}  # not in those of 1.1.0


def inner_network(network: nn.Module) -> nn.Module:
    """Return the network that DistributedDataParallel, DataParallel or torch.compile has wrapped."""
    while True:
        if isinstance(network, (DistributedDataParallel, DataParallel)):
            network = network.module
        elif hasattr(network, "_orig_mod"):
            network = network._orig_mod
        else:
            return network


def is_shared(subject: Any) -> bool:
    """Return whether all ranks have the same state of an object in ``extra``: it is a network or an optimizer."""
    return isinstance(subject, (nn.Module, torch.optim.Optimizer))


def parts_of(run: Any) -> dict[str, Any]:
    """Return network, optimizer, and the networks and optimizers in ``extra``, by their names in a checkpoint."""
    parts = {"model": run.network, "optimizer": run.optimizer}
    for name, subject in run.extra.items():
        if is_shared(subject):
            parts[f"extra[{name!r}]"] = subject
    return parts


def own_objects(run: Any) -> dict[str, Any]:
    """Return the objects in ``extra`` of which each rank may have another state."""
    return {name: subject for name, subject in run.extra.items() if not is_shared(subject)}


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the parameters of an optimizer; their places are their numbers in its state."""
    return list(chain.from_iterable(group["params"] for group in optimizer.param_groups))


def state_of(subject: Any, name: str) -> Any:
    """Return the state of an object; its tensors are not copied. Raises TrainingError with ``name`` if it has none."""
    if isinstance(subject, nn.Module):
        return {key.replace(COMPILED, ""): value for key, value in inner_network(subject).state_dict().items()}
    if hasattr(subject, "load_state_dict"):
        return subject.state_dict()
    if hasattr(subject, "bit_generator"):  # a Generator of NumPy
        return subject.bit_generator.state
    if hasattr(subject, "set_state"):  # a Generator of torch
        return subject.get_state()
    raise TrainingError(f"{name}: {type(subject).__qualname__} has no state_dict() and load_state_dict()")


def load_object(subject: Any, state: Any) -> None:
    """Set the state of an object; raises the object's error if it does not fit."""
    if isinstance(subject, nn.Module):
        load_network(inner_network(subject), state)
    elif isinstance(subject, torch.optim.Optimizer):
        load_optimizer(subject, state)
    elif hasattr(subject, "load_state_dict"):
        subject.load_state_dict(state)
    elif hasattr(subject, "bit_generator"):
        subject.bit_generator.state = state
    else:
        subject.set_state(state)


def load_network(network: nn.Module, saved: Mapping[str, Any]) -> None:
    """Copy a saved state to a network; raises torch's RuntimeError if it does not fit."""
    state = network.state_dict()
    names = {name.replace(COMPILED, ""): name for name in state}
    state.clear()  # what is left are the versions of the modules
    for name, value in saved.items():
        state[names.get(name, name)] = value
    network.load_state_dict(state)


def load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Give an optimizer a saved state, which is changed; raises ValueError if it does not fit.

    Options that depend on the machine, and those that the saved state does not have, stay the run's own.
    """
    for group, own in zip(saved["param_groups"], optimizer.param_groups):
        for name, value in own.items():
            if name in MACHINE_OPTIONS or name not in group:
                group[name] = value
    is_fused = any(group.get("fused") for group in optimizer.param_groups)
    for place, parameter in enumerate(parameters_of(optimizer)):
        fit_state(saved["state"].get(place, {}), parameter, is_fused)
    optimizer.load_state_dict(saved)


@torch.no_grad()
def fit_state(state: dict[str, Any], parameter: Tensor, is_fused: bool) -> None:
    """Give what an optimizer keeps for a parameter the strides of the parameter, which a fused step does not compare.

    Raises ValueError if a fused step would write beyond the memory of a tensor.
    """
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.dim() == 0:
            continue
        if hasattr(value, "_local_tensor"):  # a DTensor, which was made in the form of the parameter
            continue
        if value.shape == parameter.shape:
            state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        elif is_fused:
            raise ValueError(f"{name} of its optimizer has shape {[*value.shape]} for a weight {[*parameter.shape]}")


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the random states of torch, Python and NumPy on this rank, which computes on ``device``."""
    state = {"cpu": torch.get_rng_state(), "python": random.getstate()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    if "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state()
    return state


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Set the random states of this rank."""
    torch.set_rng_state(state["cpu"])
    if device.type in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
    if "python" in state:  # not in a checkpoint of release 1.1.0
        random.setstate(state["python"])
    if "numpy" in state and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(state["numpy"])


def schedule_state(schedule: Any) -> Any:
    """Return the state of a schedule, None without one; its functions, which torch 2.0 has in it, are left out."""
    if schedule is None:
        return None
    return {name: value for name, value in schedule.state_dict().items() if not callable(value)}


def gather_state(run: Any, tensors: dict[str, Tensor] | None = None) -> dict[str, Any] | None:
    """Return, on rank 0, the state of a run as plain values; all ranks call it.

    If there is a dictionary ``tensors``, those of networks and optimizers are moved there, on each rank. Random states
    and other objects of ``extra`` are those of each rank. Raises TrainingError if a count of the position differs
    between ranks: each has counted for itself.
    """
    world = run.world
    with fail_together(world):
        parts = {name: encode(state_of(subject, name), name, tensors) for name, subject in parts_of(run).items()}
        objects = {name: state_of(subject, f"extra[{name!r}]") for name, subject in own_objects(run).items()}
        values = {
            "position": {name: number(value, f"position.{name}") for name, value in asdict(run.position).items()},
            "schedule": encode(schedule_state(run.schedule), "schedule"),
            "random": encode(random_state(world.device), "random state"),
            "extra": encode(objects, "extra"),
        }
        own = read_back(values, "schedule, extra or random state")
    ranks = gather(own, world) or []
    with fail_together(world):
        check_counts([one["position"] for one in ranks])
    if world.rank > 0:
        return None
    return {
        **parts,
        "settings": run.settings,
        "best": list(run.best),
        "data": run.data,
        "position": own["position"],
        "schedule": own["schedule"],
        "extra": sorted(run.extra),
        "each": [one["extra"] for one in ranks],
        "random": [one["random"] for one in ranks],
    }


def check_counts(positions: list[dict[str, int | float]]) -> None:
    """Raise TrainingError if a count differs between the positions of the ranks."""
    for name in COUNTS:
        found = {str(position.get(name)) for position in positions}
        if len(found) > 1:
            raise TrainingError(
                f"position.{name} differs between the ranks: {', '.join(sorted(found))}. Set it to the sum over "
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


def check_identity(path: Path, saved: Mapping[str, Any], run: Any) -> None:
    """Raise TrainingError if the state in ``path`` is of another run."""
    then = identity({**OLDER, **saved})
    now = identity(vars(run))
    if then["data="] is None or now["data="] is None:  # without a fingerprint
        then["data="] = now["data="]
    changed = [name for name in {**now, **then} if comparable(then.get(name)) != comparable(now.get(name))]
    if changed:
        found = [f"{name} {then.get(name)} (now {now.get(name)})" for name in changed]
        raise TrainingError(f"{path}: written with {', '.join(found)}. Use the same options and data, {REMEDY}")
    for name, most in run.limits.items():
        if saved["position"][name] > most:
            raise TrainingError(f"{path}: {name} {saved['position'][name]} is beyond the end of this run ({most})")


def load_state(run: Any, saved: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Continue a run, after ``check_identity``; raises torch's errors if a part does not fit."""
    world = run.world
    for name, subject in parts_of(run).items():
        load_object(subject, decode(saved[name], tensors))
    if run.schedule is not None:
        run.schedule.load_state_dict(decode(saved["schedule"], tensors))
    for name, subject in own_objects(run).items():
        states = [one[name] for one in saved["each"]]
        load_object(subject, decode(state_for(states, name, world), tensors))
    for name, value in saved["position"].items():
        setattr(run.position, name, value)
    if len(saved["random"]) == world.size:  # those of other ranks cannot be assigned: the seeds stay
        set_random_state(decode(saved["random"][world.rank], tensors), world.device)


def state_for(states: list[Any], name: str, world: World) -> Any:
    """Return which of the states of an object a rank continues; ValueError if they are of other ranks, and differ."""
    if len(states) == world.size:
        return states[world.rank]
    if len({dump(state) for state in states}) > 1:
        raise ValueError(
            f"extra {name!r} is of {len(states)} ranks, each with its own, and these are {world.size} ranks"
        )
    return states[0]
