# SPDX-License-Identifier: BSD-3-Clause
"""Values of a run beside its weights, in a form that files keep: settings as JSON, states as plain values.

Plain values are what ``torch.load(weights_only=True)`` reads with every torch from 2.0.1: numbers, texts, lists,
tuples, dictionaries and tensors. An array of NumPy, a Counter, and a tensor that is stored elsewhere become a
dictionary with a mark.
"""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from training import TrainingError

# Keys that mark a dictionary.
COUNTER = "training.Counter"
ARRAY = "training.array"
TENSOR = "training.tensor"


def in_one_line(error: BaseException) -> str:
    """Return the text of an error in one line."""
    return " ".join(str(error).split())[:400] or type(error).__name__


def json_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as JSON keeps them; raise TrainingError with the name of one that JSON cannot hold.

    A path becomes its text, a scalar of NumPy or torch a number, a tuple a list.
    """
    kinds = "a number, a text, a path, or a list or dict of these"
    return {str(name): to_json(value, f"settings[{name!r}]", kinds) for name, value in settings.items()}


def number(value: Any, name: str) -> int | float:
    """Return a number of Python, NumPy or torch as one of Python; raise TrainingError with ``name`` for others."""
    found = to_json(value, name, "a number")
    if type(found) not in (int, float):
        raise TrainingError(f"{name}: {type(value)}. Give a number")
    return found


def to_json(value: Any, name: str, kinds: str) -> Any:
    """Return a value as JSON keeps it; raise TrainingError, with ``name`` and ``kinds``, if JSON cannot hold it."""
    try:
        return json.loads(json.dumps(value, default=json_value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise TrainingError(f"{name}: {in_one_line(error)}. Give {kinds}") from None


def json_value(value: Any) -> Any:
    """Return a path or a scalar as JSON has it; raise TypeError, ValueError or RuntimeError for other values."""
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if hasattr(value, "item"):  # of NumPy or torch
        return value.item()
    raise TypeError(f"{type(value)} cannot be compared with that of a checkpoint")


def comparable(value: Any) -> Any:
    """Return a JSON value that is equal to another if its numbers are, also where they are NaN."""
    return json.loads(json.dumps(value), parse_constant=str)


def encode(value: Any, name: str, tensors: dict[str, Tensor] | None = None) -> Any:
    """Return ``value`` as a plain value, from which ``decode`` makes it again; tensors are not copied.

    If there is a dictionary ``tensors``, they are moved there, by names that begin with ``name``. Raises TrainingError
    with the name of the part that a checkpoint cannot hold.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor):
        return encode_tensor(value.detach(), name, tensors)
    if type(value) in (list, tuple):
        return type(value)(encode(each, f"{name}.{place}", tensors) for place, each in enumerate(value))
    if isinstance(value, dict):
        items = {encode(key, f"{name}: a key"): encode(each, f"{name}.{key}", tensors) for key, each in value.items()}
        if isinstance(value, Counter):
            return {COUNTER: items}
        return items
    if type(value).__module__ == "numpy" and value.dtype.kind in "biufU":
        return {ARRAY: value.tolist(), "of": (value.dtype.str, value.shape)}
    raise TrainingError(f"{name}: {type(value)}. A checkpoint holds numbers, texts, lists, dicts and tensors")


def encode_tensor(tensor: Tensor, name: str, tensors: dict[str, Tensor] | None) -> Any:
    """Return a tensor, or its name after it was moved to ``tensors``; TrainingError if one file cannot hold it."""
    if tensors is not None:
        tensors[name] = tensor
        return {TENSOR: name}
    if hasattr(tensor, "_local_tensor"):
        raise TrainingError(f"{name}: a DTensor, of which each rank has a part. Only ShardedCheckpoints can store it")
    if type(tensor) is not Tensor:
        read_back(tensor, name)
    return tensor


def decode(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value that ``encode`` made plain, with copies of its tensors: none keeps a mapped file open.

    ``tensors`` are those that ``encode`` moved; these are not copied.
    """
    if isinstance(plain, Tensor):
        return plain.clone()
    if type(plain) in (list, tuple):
        return type(plain)(decode(each, tensors) for each in plain)
    if not isinstance(plain, dict):
        return plain
    if TENSOR in plain:
        return tensors[plain[TENSOR]]
    if COUNTER in plain:
        return Counter(plain[COUNTER])
    if ARRAY in plain:
        import numpy as np

        dtype, shape = plain["of"]
        return np.array(plain[ARRAY], dtype).reshape(shape)[()]
    return {key: decode(each, tensors) for key, each in plain.items()}


def dump(plain: Any) -> bytes:
    """Return the bytes of a file with a plain value."""
    content = io.BytesIO()  # torch.save to a full disk hides the reason: "unexpected pos"
    torch.save(plain, content)
    return content.getvalue()


def read_back(plain: Any, name: str) -> Any:
    """Return a plain value as it is read from a file, on the CPU; raise TrainingError with ``name`` if torch cannot."""
    try:
        return torch.load(io.BytesIO(dump(plain)), map_location="cpu", weights_only=True)
    except Exception as error:  # of a dozen types
        raise TrainingError(f"{name}: a checkpoint cannot hold it ({in_one_line(error)})") from error
