"""Whether a checkpoint fits the run that is to continue from it; called by Run.resume before any of it is used.

Fused optimizers trust what they are given: a state of another shape or with other strides is memory overwritten.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

MOST_SHOWN = 40  # characters of a value in a message


class MismatchError(Exception):
    """A part of a checkpoint is not of this run; its text says which."""


class Extent(NamedTuple):
    """How long a training is: its epochs, the steps of an epoch, the samples of an epoch."""

    epochs: int
    steps: int
    samples: int


def describe(value: object) -> str:
    """Return what ``value`` is, in a few words, whatever it is."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of {value.dtype} with the shape {list(value.shape)}"
    if value is None or type(value) in (bool, int, float, str):
        text = str(value) if not isinstance(value, int) or abs(value) < 2**63 else "a huge number"
        text = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
        return text if text.isprintable() else repr(text)
    size = f" of {len(value)}" if isinstance(value, (list, tuple, Mapping)) else ""
    return f"a {type(value).__name__}{size}"


def fit(saved, fresh, where: str, *, all_names: bool = True):
    """Return ``saved`` in the form of ``fresh``, which the run made itself; numbers may differ.

    Tensors must have the same shape and type, and get memory of their own with the strides of ``fresh``;
    mappings must have the same names, or else, if not ``all_names``, keep fresh values for those
    that are not there. Raises MismatchError.
    """
    mismatch = MismatchError(f"{where} is {describe(saved)}, expected {describe(fresh)}")
    if isinstance(fresh, torch.Tensor):
        if not isinstance(saved, torch.Tensor) or (saved.shape, saved.dtype) != (fresh.shape, fresh.dtype):
            raise mismatch
        if saved.layout != torch.strided or saved.device.type != "cpu" or saved.is_quantized:
            raise mismatch
        return torch.empty_like(fresh, device="cpu", requires_grad=False).copy_(saved.detach())
    if isinstance(fresh, Mapping):
        if not isinstance(saved, Mapping):
            raise mismatch
        odd = [name for name in fresh if name not in saved] + [name for name in saved if name not in fresh]
        if odd and all_names:
            raise MismatchError(f"{where} has other names: {', '.join(map(describe, odd[:3]))}")
        return {
            name: fit(saved[name], value, f"{where}[{name}]", all_names=all_names) if name in saved else value
            for name, value in fresh.items()
        }
    if isinstance(fresh, (list, tuple)):
        if not isinstance(saved, (list, tuple)) or len(saved) != len(fresh):
            raise mismatch
        return type(fresh)(
            fit(one, other, f"{where}[{place}]", all_names=all_names)
            for place, (one, other) in enumerate(zip(saved, fresh))
        )
    if is_number(fresh):
        if not is_number(saved):
            raise mismatch
    elif type(saved) is not type(fresh) or saved != fresh:
        raise mismatch
    return saved


def is_equal(saved, own) -> bool:
    """Return whether a value of a file is that of the run, however large the one in the file is."""
    if isinstance(own, (list, tuple)):
        return isinstance(saved, (list, tuple)) and len(saved) == len(own) and all(map(is_equal, saved, own))
    if isinstance(own, Mapping):
        same = isinstance(saved, Mapping) and saved.keys() == own.keys()
        return same and all(is_equal(saved[name], own[name]) for name in own)
    return (saved is None or type(saved) in (bool, int, float, str)) and saved == own


def is_number(value: object) -> bool:
    """Return whether ``value`` is an int of 64 bits or a float."""
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def fit_optimizer(saved, optimizer: torch.optim.Optimizer) -> dict:
    """Return the state of an optimizer such that ``optimizer`` can load it; raises MismatchError.

    What it must look like, a step of a copy tells. A parameter that had no gradient has no state. Of the
    groups' options the numbers are taken, as a schedule may have changed them; what this machine
    and its torch can do ("fused") is the run's own.
    """
    groups = optimizer.state_dict()["param_groups"]
    parameters = dict(enumerate(parameter for group in optimizer.param_groups for parameter in group["params"]))
    fresh = state_after_a_step(optimizer)
    state = saved.get("state") if isinstance(saved, Mapping) else None
    if not isinstance(state, Mapping) or not state.keys() <= (parameters if fresh is None else fresh).keys():
        raise MismatchError("optimizer has a state of other parameters")
    own = [{name: value for name, value in group.items() if name in ("params", "fused")} for group in groups]
    options = [{name: value for name, value in group.items() if name != "fused"} for group in groups]
    fitted = fit(saved.get("param_groups"), options, "optimizer[param_groups]", all_names=False)
    if any(group["params"] != mine["params"] for group, mine in zip(fitted, own)):
        raise MismatchError("optimizer[param_groups] has other parameters")
    if fresh is None:
        most = sum(parameter.numel() for parameter in parameters.values())
        fitting = {
            place: fit_to_parameter(one, parameters[place], most, f"optimizer[state][{place}]")
            for place, one in state.items()
        }
    else:
        state = {place: with_scalar_step(one, fresh[place]) for place, one in state.items()}
        fitting = fit(state, {place: fresh[place] for place in state}, "optimizer[state]")
    return {
        "state": fitting,
        "param_groups": [{**group, **mine} for group, mine in zip(fitted, own)],
    }


def state_after_a_step(optimizer: torch.optim.Optimizer) -> dict | None:
    """Return the state that a step gives a copy of an optimizer.

    None for one that takes no step like that: LBFGS wants a closure, SparseAdam sparse gradients.
    """
    trial = copy.deepcopy(optimizer)
    for group in trial.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    try:
        trial.step()
    except Exception:
        return None
    return trial.state_dict()["state"]


def with_scalar_step(saved, fresh: Mapping):
    """Return the state of a parameter with "step", one number, in the shape that this torch gives it.

    Some versions of torch and of fused optimizers save it with the shape [1], others with [].
    """
    own, step = fresh.get("step"), saved.get("step") if isinstance(saved, Mapping) else None
    if not isinstance(own, torch.Tensor) or not isinstance(step, torch.Tensor):
        return saved
    if step.layout != torch.strided or not step.numel() == own.numel() == 1:
        return saved
    return {**saved, "step": step.reshape(own.shape)}


def fit_to_parameter(saved, parameter: torch.Tensor, most: int, where: str):
    """Return the state of a parameter if its tensors can be this parameter's; raises MismatchError.

    They have the shape of the parameter, or a single element, or, as LBFGS has them, all ``most`` elements of
    all parameters in a row.
    """
    if isinstance(saved, torch.Tensor):
        if saved.shape != parameter.shape and saved.numel() != 1 and saved.shape != (most,):
            raise MismatchError(f"{where} is {describe(saved)}, expected {describe(parameter)}")
        kind = saved.dtype if saved.numel() == 1 else parameter.dtype
        like = parameter.detach() if saved.shape == parameter.shape else torch.empty(saved.shape)
        return fit(saved, torch.empty_like(like, dtype=kind, device="cpu"), where)
    if isinstance(saved, Mapping):
        return {
            name: fit_to_parameter(one, parameter, most, f"{where}[{describe(name)}]") for name, one in saved.items()
        }
    if isinstance(saved, (list, tuple)):
        return type(saved)(fit_to_parameter(one, parameter, most, where) for one in saved)
    if not (is_number(saved) or saved is None or type(saved) is bool):
        raise MismatchError(f"{where} is {describe(saved)}, expected tensors and numbers")
    return saved


def fit_position(saved, fresh: Mapping, extent: Extent | None) -> dict:
    """Return the position of a run in a training of this ``extent``, if that is known; raises MismatchError.

    A checkpoint of an older version may lack a name, which keeps its fresh value.
    """
    if not isinstance(saved, Mapping) or not set(saved) <= set(fresh):
        raise MismatchError("position has other names")
    position = fit(saved, fresh, "position", all_names=False)
    epochs, steps, samples = extent or (2**31, 2**31, 2**63)
    most = {"epoch": epochs, "step": steps - 1, "samples": samples, "best_epoch": position["epoch"]}
    if position["epoch"] == epochs:
        most["step"] = 0
    for name, value in position.items():
        if name in most and not (type(value) is int and 0 <= value <= most[name]):
            raise MismatchError(f"position[{name}] is {describe(value)}, expected 0 to {most[name]}")
        if name.endswith("seconds") and not 0 <= value < math.inf:
            raise MismatchError(f"position[{name}] is {describe(value)}, expected 0 or more")
    if extent and position["samples"] < position["step"]:
        raise MismatchError(f"position[samples] is {position['samples']} after {position['step']} steps")
    return position
