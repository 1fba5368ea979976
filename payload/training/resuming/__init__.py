"""Whether a checkpoint fits the run that resumes from it; checked before any part of it is used."""

from training.resuming.identity import REMEDY, check_identity
from training.resuming.optimizer import fit_optimizer
from training.resuming.position import Extent, fit_position
from training.resuming.values import MismatchError, describe, fit

__all__ = [
    "REMEDY",
    "Extent",
    "MismatchError",
    "check_identity",
    "describe",
    "fit",
    "fit_optimizer",
    "fit_position",
]
