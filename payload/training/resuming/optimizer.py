# SPDX-License-Identifier: BSD-3-Clause
"""Compares the state of an optimizer in a checkpoint with that of the run's own optimizer after one step.

Fused optimizers do not check their state: another shape or other strides make them overwrite memory.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch

from training.resuming.values import MismatchError, fit, format_value, is_number


def fit_optimizer(saved, optimizer: torch.optim.Optimizer) -> dict:
    """Return a saved state in a form that ``optimizer`` can load; raises MismatchError.

    Its form is that of a copy of ``optimizer`` after one step. A parameter without a gradient has no state.
    Numbers in the options of the groups are loaded, as a schedule may have changed them; "fused", which
    depends on the machine and on torch, stays the run's own.
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
        fitted_state = {
            place: fit_to_parameter(one, parameters[place], most, f"optimizer[state][{place}]")
            for place, one in state.items()
        }
    else:
        state = {place: with_scalar_step(one, fresh[place]) for place, one in state.items()}
        fitted_state = fit(state, {place: fresh[place] for place in state}, "optimizer[state]")
    return {
        "state": fitted_state,
        "param_groups": [{**group, **mine} for group, mine in zip(fitted, own)],
    }


def state_after_a_step(optimizer: torch.optim.Optimizer) -> dict | None:
    """Return the state of a copy of an optimizer after one step.

    None if it cannot take such a step: LBFGS requires a closure, SparseAdam sparse gradients.
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
    """Return the state of a parameter with its "step", one number, in the shape of ``fresh``.

    Depending on the version of torch and on "fused", it is saved with the shape [1] or [].
    """
    own, step = fresh.get("step"), saved.get("step") if isinstance(saved, Mapping) else None
    if not isinstance(own, torch.Tensor) or not isinstance(step, torch.Tensor):
        return saved
    if step.layout != torch.strided or not step.numel() == own.numel() == 1:
        return saved
    return {**saved, "step": step.reshape(own.shape)}


def fit_to_parameter(saved, parameter: torch.Tensor, most: int, where: str):
    """Return the state of a parameter if its tensors can belong to this parameter; raises MismatchError.

    They have the shape of the parameter, or one element, or, with LBFGS, the ``most`` elements of all
    parameters in a row.
    """
    if isinstance(saved, torch.Tensor):
        if saved.shape != parameter.shape and saved.numel() != 1 and saved.shape != (most,):
            raise MismatchError(f"{where} is {format_value(saved)}, expected {format_value(parameter)}")
        kind = saved.dtype if saved.numel() == 1 else parameter.dtype
        like = parameter.detach() if saved.shape == parameter.shape else torch.empty(saved.shape)
        return fit(saved, torch.empty_like(like, dtype=kind, device="cpu"), where)
    if isinstance(saved, Mapping):
        return {
            name: fit_to_parameter(one, parameter, most, f"{where}[{format_value(name)}]")
            for name, one in saved.items()
        }
    if isinstance(saved, (list, tuple)):
        return type(saved)(fit_to_parameter(one, parameter, most, where) for one in saved)
    if not (is_number(saved) or saved is None or type(saved) is bool):
        raise MismatchError(f"{where} is {format_value(saved)}, expected tensors and numbers")
    return saved
