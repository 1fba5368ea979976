# SPDX-License-Identifier: BSD-3-Clause
"""Explains faults of torch.compile."""

from __future__ import annotations

from training import TrainingError


def compiler_fault(error: Exception) -> TrainingError | None:
    """Return a fault of torch.compile in one line; None for other faults."""
    if not type(error).__module__.startswith(("torch._inductor", "torch._dynamo")):
        return None
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return TrainingError(
        f"--compile: the network cannot be compiled ({first.rstrip(' .:')}). Put a C++ compiler on PATH or set CXX "
        "(on GPUs: Triton and a C compiler), or omit --compile"
    )
