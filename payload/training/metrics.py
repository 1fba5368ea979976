# SPDX-License-Identifier: BSD-3-Clause
"""Records the values of each epoch in metrics.jsonl, and with TensorBoard, Weights & Biases and MLflow."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from training import TrainingError
from training.files import write_file, writing
from training.values import in_one_line, json_settings, number

METRICS_FILE = "metrics.jsonl"
Values = Mapping[str, object]


def read_epochs(path: Path, key: str = "epoch") -> list[dict]:
    """Return the values of each epoch in a metrics.jsonl, in order; an empty list if it does not exist.

    ``key`` is the name of the number, from 1, that orders the lines. Damaged lines are left out.
    """
    if not path.exists():
        return []
    epochs = []
    for line in path.read_text(errors="replace").splitlines():
        with suppress(ValueError, TypeError, KeyError):
            values = json.loads(line)
            values[key] += 0  # a number
            epochs.append(values)
    return epochs


class Tracker(NamedTuple):
    """A program that shows trainings: ``log(numbers, epoch)``, and ``close(exit_status)``."""

    log: Callable
    close: Callable


def open_tensorboard(directory: Path, _options: Values, first_epoch: int) -> Tracker:
    """Write to a directory; what a resumed training repeats is hidden."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(directory / "tensorboard", purge_step=first_epoch + 1)

    def log(values: Values, epoch: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, epoch)
        writer.flush()

    return Tracker(log, lambda _status: writer.close())


def open_wandb(directory: Path, options: Values, _first_epoch: int) -> Tracker:
    """Report to Weights & Biases, which continues a run that did not finish."""
    import wandb

    run = wandb.init(project=options["wandb"], resume="auto", dir=directory, config=json_settings(options))
    return Tracker(lambda values, epoch: run.log(values, step=epoch), lambda status: run.finish(exit_code=status))


def open_mlflow(directory: Path, options: Values, _first_epoch: int) -> Tracker:
    """Report to MLflow, where MLFLOW_TRACKING_URI says: a new run, or the one that MLFLOW_RUN_ID names."""
    import mlflow

    mlflow.start_run(run_name=directory.resolve().name)
    mlflow.log_params(json_settings(options))
    return Tracker(
        lambda values, epoch: mlflow.log_metrics(values, step=epoch),
        lambda status: mlflow.end_run("FAILED" if status else "FINISHED"),
    )


#: What opens a tracker, by the option that names it.
TRACKERS = {"tensorboard": open_tensorboard, "wandb": open_wandb, "mlflow": open_mlflow}


def reason(error: Exception) -> str:
    """Return an error as one line, without a password in an address."""
    return re.sub(r"//[^/@\s]*@", "//", in_one_line(error)).rstrip(".")


def attempt(name: str, call: Callable, *arguments: object) -> None:
    """Call a tracker; one that fails, such as a server, ends no training."""
    try:
        call(*arguments)
    except Exception as error:
        print(f"--{name}: {reason(error)}. The training continues", flush=True)


class Metrics:
    """The record of one training in its output directory; without a directory nothing is written.

    >>> with Metrics(directory, options=vars(options), first_epoch=2) as metrics:
    ...     metrics.epoch(3, loss=0.09, accuracy=98.1, ...)

    ``metrics.jsonl`` holds one JSON object per epoch, or per what else ``key`` numbers. ``first_epoch`` is the
    number of completed epochs: lines of later epochs are removed, so that a resumed training repeats none. ``options``
    are logged to the programs that they name, which a ``with`` block closes at its end: ``tensorboard``, ``wandb`` (a
    project) and ``mlflow``. Raises TrainingError if a file cannot be written or a package is missing.
    """

    def __init__(self, directory: Path | None, *, options: Values, first_epoch: int = 0, key: str = "epoch"):
        self.directory = directory
        self.key = key
        self.trackers: dict[str, Tracker] = {}
        if directory is None:
            return
        self.path = directory / METRICS_FILE
        self.lines = [line for line in read_epochs(self.path, key) if line[key] <= first_epoch]
        self.write()
        for name in filter(options.get, TRACKERS):
            try:
                self.trackers[name] = TRACKERS[name](directory, options, first_epoch)
            except Exception as error:  # each package raises types of its own
                raise TrainingError(f"--{name}: {reason(error)}. See docs/watching.md, or omit --{name}") from None

    def epoch(self, epoch: int, **values: object) -> None:
        """Record the values of an epoch, or of what else ``key`` numbers, counted from 1.

        Values are numbers, also of NumPy and torch, texts or None, under any names; TrainingError for others. Call it
        before the checkpoint of the epoch is written: after a kill between the two, the epoch is repeated and its
        line replaced; in the other order, its line would be missing.
        """
        others = (str, type(None))
        numbers = {name: number(value, name) for name, value in values.items() if not isinstance(value, others)}
        if self.directory:
            line = {**values, **numbers, self.key: epoch}
            for name, value in numbers.items():
                if not math.isfinite(value):
                    line[name] = None  # JSON has no NaN
            self.lines.append(line)
            self.write()
        for name, tracker in self.trackers.items():
            attempt(name, tracker.log, numbers, epoch)

    def write(self) -> None:
        """Write all lines, completely or not at all: a kill leaves no part of one."""
        with writing(self.path):
            write_file(self.path, "".join(json.dumps(line) + "\n" for line in self.lines).encode())

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, fault: type[BaseException] | None, *_: object) -> None:
        for name, tracker in self.trackers.items():
            attempt(name, tracker.close, int(fault is not None))
