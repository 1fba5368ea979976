# SPDX-License-Identifier: BSD-3-Clause
"""Whether a checkpoint fits the run that resumes from it; checked before any part of it is used."""

from training.resuming.state import REMEDY, Extent, fit_state
from training.resuming.values import MismatchError, without_prefixes

__all__ = ["REMEDY", "Extent", "MismatchError", "fit_state", "without_prefixes"]
