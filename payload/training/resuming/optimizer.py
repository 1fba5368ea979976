"""Compares the state of an optimizer with the one that a step of the run's own would have.

Fused optimizers trust what they are given: a state of another shape or with other strides is memory overwritten.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch

from training.resuming.values import MismatchError, describe, fit, is_number


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
