"""Whether a checkpoint was written by this program, with the options and the data of this run."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from training import TrainingError
from training.resuming.values import format_value, is_equal

PARTS = {"model", "optimizer", "schedule", "position", "random", "settings"}
REMEDY = "choose another directory with --modelpath, or start from scratch with --restart"
MOST_NAMES = 100  # settings that are compared
MOST_REPORTED = 9  # settings in a message


def check_identity(state: Mapping, settings: Mapping, data: str | None) -> None:
    """Raise TrainingError if ``state`` is of another program or another run, with the values that differ.

    Versions before the fingerprint wrote no "data": then a line is printed, and the run continues.
    """
    file = state["file"]
    missing = PARTS - state.keys()
    if missing:
        raise TrainingError(
            f"{file}: written by another program: it has no {', '.join(sorted(missing))}. "
            "Choose another directory with --modelpath"
        )
    saved = state["settings"] if isinstance(state["settings"], Mapping) else {}
    changed = [
        f"{format_value(name)} {format_value(saved.get(name))} (now {settings.get(name)})"
        for name in islice({**settings, **saved}, MOST_NAMES)
        if not is_equal(saved.get(name), settings.get(name))
    ]
    if changed:
        raise TrainingError(
            f"{file}: written with {', '.join(changed[:MOST_REPORTED])}. Use the same options, {REMEDY}"
        )
    if data and state.get("data") is None:
        print(f"{file}: holds no fingerprint of the data. Make sure that the data is the same", flush=True)
    elif data and not is_equal(state["data"], data):
        raise TrainingError(f"{file}: written with other data. Use the same data (--data or MNIST_ROOT), {REMEDY}")
