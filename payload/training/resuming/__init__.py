"""Whether a checkpoint fits the run that is to continue from it, before any of it is used."""

from training.resuming.optimizer import fit_optimizer
from training.resuming.position import Extent, fit_position
from training.resuming.values import MismatchError, describe, fit, is_equal

__all__ = ["Extent", "MismatchError", "describe", "fit", "fit_optimizer", "fit_position", "is_equal"]
