# SPDX-License-Identifier: BSD-3-Clause
"""Whether a sharded checkpoint fits the run that resumes from it; checked before any part of it is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from training.checkpoint import DamagedError, MismatchError, check_identity, describe, fit
from training.sharded.directory import step_of
from training.sharded.manifest import Manifest, Stored, verify


def fit_manifest(manifest: Manifest, path, own: Mapping[str, torch.Tensor], values: Mapping) -> dict:
    """Return the values of a checkpoint that a run can load; ``own`` and ``values`` are the run's own.

    Raises TrainingError if the checkpoint is of another run, MismatchError if a part differs from the run's own
    in names, shapes or types.
    """
    saved = manifest.values
    optimizer = saved.get("optimizer")
    # "model" and "random" are tensors
    check_identity({"model": None, "random": None, **saved, "file": path}, values["settings"], values["data"])
    fit_tensors(manifest.tensors, own)
    if not isinstance(optimizer, Mapping):
        raise MismatchError(f"optimizer is {describe(optimizer)}, expected a dict")
    return {
        "position": fit_position(saved["position"], values["position"], step_of(path)),
        "schedule": fit(saved["schedule"], values["schedule"], "schedule", all_names=False),
        "optimizer": fit(optimizer, values["optimizer"], "optimizer"),
    }


def fit_tensors(saved: Mapping[str, Stored], own: Mapping[str, torch.Tensor]) -> None:
    """Raise MismatchError if tensors of network and optimizer differ in names, shapes or types."""
    for part in ("model", "optimizer"):
        names = {name for name in saved if name.startswith(f"{part}.")}
        odd = sorted(names ^ {name for name in own if name.startswith(f"{part}.")})
        if odd:
            raise MismatchError(f"{part} has other names: {', '.join(describe(name) for name in odd[:3])}")
    for name, tensor in own.items():
        if name in saved and not is_alike(saved[name], tensor):
            found = f"a tensor of torch.{describe(saved[name].dtype)} with the shape {list(saved[name].shape)}"
            raise MismatchError(f"{name} is {found}, expected {describe(tensor)}")


def is_alike(stored: Stored, tensor: torch.Tensor) -> bool:
    """Return whether a stored tensor has the type and shape of ``tensor``."""
    return f"torch.{stored.dtype}" == str(tensor.dtype) and stored.shape == tuple(tensor.shape)


def fit_position(saved, own: Mapping, step: int) -> dict:
    """Return a saved position after ``step`` steps, with the run's own values for names that it lacks."""
    position = fit(saved, own, "position", all_names=False)
    for name, value in position.items():
        if isinstance(own[name], int) and not (type(value) is int and value >= 0):
            raise MismatchError(f"position[{name}] is {describe(value)}, expected 0 or more")
        if name.endswith("seconds") and not 0 <= value < math.inf:
            raise MismatchError(f"position[{name}] is {describe(value)}, expected 0 or more")
    if position["step"] != step:
        raise MismatchError(f"position[step] is {position['step']}, expected {step}")
    return position


def fault_of_shards(manifest: Manifest, path, rank: int, size: int) -> str:
    """Return what is damaged in this rank's share of the files; empty if nothing is.

    Raises TrainingError if one cannot be read.
    """
    for number, (name, (length, checksum)) in enumerate(sorted(manifest.files.items())):
        if number % size == rank:
            try:
                verify(path / name, length, checksum)
            except DamagedError as fault:
                return str(fault)
    return ""
