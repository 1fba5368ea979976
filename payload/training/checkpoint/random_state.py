"""The state of a rank's random number generators."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Return the random state of a rank that computes on ``device``."""
    random = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        random["cuda"] = torch.cuda.get_rng_state(device)
    return random


def set_random_state(random: Mapping[str, torch.Tensor], device: torch.device) -> None:
    """Set the random state of a rank that computes on ``device``; RuntimeError if torch rejects it."""
    torch.set_rng_state(random["cpu"])
    if "cuda" in random:
        torch.cuda.set_rng_state(random["cuda"], device)
