# SPDX-License-Identifier: BSD-3-Clause
"""Compares a value in a checkpoint with the run's own."""

from __future__ import annotations

from collections.abc import Mapping

import torch

MOST_SHOWN = 40  # characters of a value in a message


class MismatchError(Exception):
    """A part of a checkpoint does not fit this run; the text names it."""


def format_value(value: object) -> str:
    """Return any ``value`` in a few words, for a message."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of {value.dtype} with the shape {list(value.shape)}"
    if value is None or type(value) in (bool, int, float, str):
        text = str(value) if not isinstance(value, int) or abs(value) < 2**63 else "a huge number"
        text = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
        return text if text.isprintable() else repr(text)
    size = f" of {len(value)}" if isinstance(value, (list, tuple, Mapping)) else ""
    return f"a {type(value).__name__}{size}"


def fit(saved, fresh, where: str, *, all_names: bool = True):
    """Return ``saved`` in the form of ``fresh``, the run's own value; only numbers may differ.

    Tensors must have the same shape and type; they are copied to new memory with the strides of ``fresh``.
    Mappings must have the same names; if not ``all_names``, missing ones keep their fresh values.
    Raises MismatchError.
    """
    mismatch = MismatchError(f"{where} is {format_value(saved)}, expected {format_value(fresh)}")
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
            raise MismatchError(f"{where} has other names: {', '.join(map(format_value, odd[:3]))}")
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
    """Return whether a value in a file equals the run's own; its cost is limited by the run's own."""
    if isinstance(own, (list, tuple)):
        return isinstance(saved, (list, tuple)) and len(saved) == len(own) and all(map(is_equal, saved, own))
    if isinstance(own, Mapping):
        same = isinstance(saved, Mapping) and saved.keys() == own.keys()
        return same and all(is_equal(saved[name], own[name]) for name in own)
    return (saved is None or type(saved) in (bool, int, float, str)) and saved == own


def is_number(value: object) -> bool:
    """Return whether ``value`` is an int of 64 bits or a float."""
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def without_prefixes(state):
    """Return ``state`` without the prefixes that DistributedDataParallel and torch.compile add to names."""
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        return state
    for prefix in ("module.", "_orig_mod.", "module."):  # either may wrap the other
        if state and all(name.startswith(prefix) for name in state):
            state = {name[len(prefix) :]: tensor for name, tensor in state.items()}
    return state
