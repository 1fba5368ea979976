# SPDX-License-Identifier: BSD-3-Clause
"""The state of a run as plain values (see training/values.py), and back.

Network and optimizer, and with ``gather_values``, ``check_values`` and ``load_values`` everything else.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from training import TrainingError
from training.accelerator import module_of
from training.distributed import broadcast, fail_together, gather
from training.values import decode, dump, encode, is_same, json_settings, number

if TYPE_CHECKING:
    from training.run import Run

REMEDY = "choose another directory with --modelpath, or start from scratch with --restart"
COUNTS = ("epoch", "step", "samples", "loss_sum")  # of a position: the same numbers on all ranks
MACHINE_OPTIONS = ("fused", "foreach", "capturable")  # of an optimizer: they depend on the device
COMPILED = "_orig_mod."  # in the names of a module that torch.compile has wrapped


def inner_network(network: nn.Module) -> nn.Module:
    """Return the network that DistributedDataParallel, DataParallel or torch.compile has wrapped."""
    while True:
        if isinstance(network, (DistributedDataParallel, DataParallel)):
            network = network.module
        elif hasattr(network, "_orig_mod"):
            network = network._orig_mod
        else:
            return network


def network_state(network: nn.Module, name: str = "network") -> dict[str, Any]:
    """Return the state of the inner network; its tensors are not copied."""
    state = inner_network(network).state_dict()
    for key in list(state):
        state[key.replace(COMPILED, "")] = encode(state.pop(key), f"{name}: {key}")
    return state


def load_network(network: nn.Module, saved: Mapping[str, Any]) -> None:
    """Copy a saved state to the inner network; raises torch's RuntimeError if it does not fit."""
    network = inner_network(network)
    own = network.state_dict()
    names = {name.replace(COMPILED, ""): name for name in own}
    for prefix in ("module.", "_orig_mod.", "module."):  # of wrappers, in checkpoints of release 1.1.0
        if not names.keys() & saved.keys() and all(name.startswith(prefix) for name in saved):
            saved = {name[len(prefix) :]: value for name, value in saved.items()}
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    own.clear()  # what is left are the versions of the modules
    for name, value in saved.items():
        name = names.get(name, name)
        own[name] = value if name in parameters else decode(value)  # torch copies parameters, but not all buffers
    network.load_state_dict(own)


def load_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Copy a saved state to an optimizer; raises ValueError if it does not fit.

    Options that depend on the machine, and those that the saved state does not have, stay the run's own.
    """
    own = optimizer.state_dict()["param_groups"]
    sizes = [len(group["params"]) for group in saved["param_groups"]]
    if sizes != [len(group["params"]) for group in own]:
        raise ValueError("its optimizer has other groups of parameters")
    groups = []
    state = {}
    for mine, group, live in zip(own, saved["param_groups"], optimizer.param_groups):
        machine = {name: mine[name] for name in MACHINE_OPTIONS if name in mine}
        groups.append({**mine, **decode(group), **machine})
        for place, parameter in zip(group["params"], live["params"]):
            if place in saved["state"]:
                state[place] = optimizer_state(saved["state"][place], parameter, bool(machine.get("fused")))
    optimizer.load_state_dict({"state": state, "param_groups": groups})


@torch.no_grad()
def optimizer_state(saved: Mapping[str, Any], parameter: Tensor, is_fused: bool) -> dict[str, Any]:
    """Return what an optimizer keeps for a parameter, in new memory with the strides of the parameter."""
    state = {}
    for name, value in saved.items():
        if not isinstance(value, Tensor) or value.dim() == 0:
            state[name] = decode(value)
        elif hasattr(value, "_local_tensor"):  # a DTensor, which was made in the form of the parameter
            state[name] = value
        elif value.shape == parameter.shape:
            state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        elif is_fused:  # its step would write beyond the memory
            raise ValueError(f"{name} of its optimizer has shape {[*value.shape]} for a weight {[*parameter.shape]}")
        else:
            state[name] = value.clone()
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


def is_trained(subject: object) -> bool:
    """Return whether an object has the same state on all ranks: a network or an optimizer."""
    return isinstance(subject, (nn.Module, torch.optim.Optimizer))


def check_object(subject: Any, name: str) -> None:
    """Raise TrainingError with ``name`` if an object of ``extra`` has no state."""
    is_generator = hasattr(subject, "bit_generator") or hasattr(subject, "set_state")
    if not is_generator and not hasattr(subject, "load_state_dict"):
        raise TrainingError(f"{name}: {type(subject).__qualname__} has no state_dict() and load_state_dict()")


def object_state(subject: Any, name: str) -> Any:
    """Return the state of an object as a plain value; raise TrainingError with the name of what cannot be stored."""
    if isinstance(subject, nn.Module):
        return network_state(subject, name)
    if hasattr(subject, "bit_generator"):  # a Generator of NumPy
        return encode(subject.bit_generator.state, name)
    if hasattr(subject, "state_dict"):
        return encode(subject.state_dict(), name)
    return encode(subject.get_state(), name)  # a Generator of torch


def load_object(subject: Any, saved: Any) -> None:
    """Set the state of an object."""
    if isinstance(subject, nn.Module):
        load_network(subject, saved)
    elif isinstance(subject, torch.optim.Optimizer):
        load_optimizer(subject, saved)
    elif hasattr(subject, "bit_generator"):
        subject.bit_generator.state = decode(saved)
    elif hasattr(subject, "state_dict"):
        subject.load_state_dict(decode(saved))
    else:
        subject.set_state(decode(saved))


def schedule_state(schedule: Any) -> Any:
    """Return the state of a schedule, None without one; its functions, which torch 2.0 has in it, are left out."""
    if schedule is None:
        return None
    state = schedule.state_dict()
    for name in [name for name, value in state.items() if callable(value)]:
        del state[name]
    return encode(state, "schedule")


def position_numbers(position: Any) -> dict[str, int | float]:
    """Return the numbers of a position, a dataclass; raise TrainingError for a field that is no number."""
    names = [field.name for field in fields(position)]
    return {name: number(getattr(position, name), f"position.{name}") for name in names}


def gather_values(run: Run) -> dict[str, Any] | None:
    """Return, on rank 0, everything but network and optimizer as plain values; all ranks call it.

    Random states are kept for each rank, and so is an object of ``extra`` whose state differs between ranks.
    """
    with fail_together(run.world):
        extra = {name: object_state(subject, f"extra[{name!r}]") for name, subject in run.extra.items()}
        own = {
            "position": position_numbers(run.position),
            "random": random_state(run.world.device),
            "digests": {name: digest(state) for name, state in extra.items() if not is_trained(run.extra[name])},
        }
    ranks = gather(own, run.world)
    with fail_together(run.world):
        each = differing_names(ranks) if ranks else []
    each = broadcast(each, run.world)
    parts = gather({name: extra[name] for name in each}, run.world)
    if ranks is None or parts is None:
        return None
    for name in each:
        extra[name] = [part[name] for part in parts]
    return {
        "settings": run.settings,
        "best": list(run.best),
        "data": run.data,
        "position": own["position"],
        "schedule": schedule_state(run.schedule),
        "extra": extra,
        "each": each,
        "random": [one["random"] for one in ranks],
    }


def digest(state: Any) -> str:
    """Return the SHA-256 of a plain value: the same on two ranks if the values are."""
    return hashlib.sha256(dump(state)).hexdigest()


def differing_names(ranks: list[Mapping[str, Any]]) -> list[str]:
    """Return the names of the objects whose state differs between ranks.

    Raises TrainingError if a count of the position differs: each rank has counted for itself.
    """
    first = ranks[0]
    for rank, other in enumerate(ranks):
        for name in COUNTS:
            value = first["position"].get(name)
            if not is_same(value, other["position"].get(name)):
                raise TrainingError(
                    f"position.{name} is {value} on rank 0 and {other['position'][name]} on rank {rank}. Set it to the "
                    "sum over all ranks (training.distributed.sum_over_ranks)"
                )
    return [
        name for name in first["digests"] if any(other["digests"][name] != first["digests"][name] for other in ranks)
    ]


def identity(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what tells a run from others, by names for messages."""
    parts = json_settings(values["settings"])
    parts["best="] = list(values["best"])
    parts["extra="] = sorted(values["extra"])
    parts["schedule="] = values["schedule"] is not None
    return parts


def check_values(path: Path, saved: Mapping[str, Any], run: Run) -> None:
    """Raise TrainingError if the values in ``path`` are of another run."""
    then = identity({"best": ("accuracy", "max"), "extra": [], **saved})  # release 1.1.0 stored neither
    now = identity(vars(run))
    changed = [name for name in {**now, **then} if not is_same(then.get(name), now.get(name))]
    if changed:
        found = [f"{name} {then.get(name)} (now {now.get(name)})" for name in changed[:9]]
        raise TrainingError(f"{path}: written with {', '.join(found)}. Use the same options, {REMEDY}")
    data = saved.get("data")  # None: without a fingerprint
    if data and run.data and data != run.data:
        raise TrainingError(f"{path}: written with other data. Use the same data (--data or MNIST_ROOT), {REMEDY}")
    ranks = len(saved["random"])
    if saved.get("each") and ranks != run.world.size:
        raise TrainingError(
            f"{path}: extra {saved['each']} is of {ranks} ranks (now {run.world.size}), each with its own. Use {ranks} "
            f"ranks, {REMEDY}"
        )
    for name, most in run.limits.items():
        if saved["position"][name] > most:
            raise TrainingError(f"{path}: {name} {saved['position'][name]} is beyond the end of this run ({most})")


def load_values(saved: Mapping[str, Any], run: Run) -> None:
    """Continue a run with its values, after ``check_values``, and after network and optimizer have been loaded."""
    if run.schedule is not None:
        run.schedule.load_state_dict(decode(saved["schedule"]))
    for name, subject in run.extra.items():
        state = saved["extra"][name]
        if name in saved["each"]:
            state = state[run.world.rank]
        load_object(subject, state)
    for name in position_numbers(run.position):
        setattr(run.position, name, saved["position"].get(name, getattr(run.position, name)))
    if len(saved["random"]) == run.world.size:  # those of other ranks cannot be assigned: the seeds stay
        set_random_state(saved["random"][run.world.rank], run.world.device)
