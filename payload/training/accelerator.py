# SPDX-License-Identifier: BSD-3-Clause
"""The kind of GPU that torch sees: its device, its module in torch, and the library of its collectives."""

from __future__ import annotations

import torch

#: Device -> backend of torch.distributed. ROCm's GPUs are ``cuda`` too. Intel's have XCCL since torch 2.8
#: (https://docs.pytorch.org/docs/stable/distributed.html, "Backends").
BACKENDS = {"cuda": "nccl", "xpu": "xccl"}


def find_accelerator() -> str | None:
    """Return the kind of the GPUs that are visible, ``cuda`` or ``xpu``; None without any."""
    return next((kind for kind in BACKENDS if hasattr(torch, kind) and getattr(torch, kind).is_available()), None)


def module_of(device: torch.device):
    """Return the module of torch that has the functions for this kind of GPU, such as ``torch.cuda``."""
    return getattr(torch, device.type)
