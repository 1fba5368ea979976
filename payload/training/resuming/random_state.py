"""Compares the random states in a checkpoint with the ranks of the run."""

from __future__ import annotations

from training.resuming.values import MismatchError, fit, format_value


def fit_random(saved: object, own: list) -> list:
    """Return the random states of all ranks; raises MismatchError.

    With another number of ranks the list is empty, and ranks keep their seeds: the states cannot be assigned.
    """
    if not isinstance(saved, list):
        raise MismatchError(f"random is {format_value(saved)}, expected a list")
    if len(saved) != len(own):
        return []
    fitted = fit(saved, own, "random", all_names=False)
    return [{name: each[name] for name in each if name in given} for given, each in zip(saved, fitted)]
