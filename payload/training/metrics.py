# SPDX-License-Identifier: BSD-3-Clause
"""Records the values of each epoch in metrics.jsonl, as curves, with TensorBoard, Weights & Biases and MLflow."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import secrets
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path

from training import TrainingError
from training.files import read_file, write_file, writing
from training.pictures import write_picture

PICTURE = "curves.png"
METRICS_FILE = "metrics.jsonl"
MOST_BYTES = 2**26  # of metrics.jsonl: about 400,000 epochs
Tracker = tuple[Callable[[Mapping, int], object], Callable[[int], object]]


#: The curves of each panel, by the name of the number, from 1, that orders the lines.
CURVES = {
    "epoch": (("loss",), ("accuracy",), ("images_per_second",)),
    "step": (("validation_loss", "loss"), ("tokens_per_second",)),
}


def read_object(line: bytes) -> dict | None:
    """Return the JSON object in a line, None if it holds none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def finite_number(value: object) -> float | None:
    """Return a number as a float, None if it is no number or not finite."""
    return float(value) if type(value) in (int, float) and -1e308 < value < 1e308 else None  # type: ignore[operator, arg-type]


def is_record(line: dict, key: str = "epoch") -> bool:
    """Return whether an object is one that ``Metrics`` writes: its number, and what is drawn, numbers or null."""
    fields = [name for panel in CURVES[key] for name in panel]
    is_drawable = all(name in line and (line[name] is None or finite_number(line[name]) is not None) for name in fields)
    return is_drawable and type(line.get(key)) is int and line[key] > 0


def read_objects(path: Path) -> list[dict | None]:
    """Return the JSON object in each line of a file, None for a line without one; an empty list if there is no file.

    Raises TrainingError if it is a link or not a regular file, or if it is far too large.
    """
    is_there = path.is_symlink() or path.exists()
    content = read_file(path, MOST_BYTES, follow_links=False) if is_there else b""
    return [read_object(line) for line in content.split(b"\n") if line]


def read_epochs(path: Path, key: str = "epoch") -> list[dict]:
    """Return the values of each epoch in a metrics.jsonl, in order; an empty list if it does not exist."""
    return [value for value in read_objects(path) if value is not None and is_record(value, key)]


def as_line(values: Mapping) -> bytes:
    return json.dumps(values).encode() + b"\n"


def draw_curves(metrics_file: Path, picture: Path, key: str = "epoch") -> None:
    """Draw the curves of a metrics.jsonl as a PNG, if it has any lines; a line reports that drawing failed."""
    lines, panels = read_epochs(metrics_file, key), CURVES[key]

    def draw(figure) -> None:
        figure.suptitle(picture.absolute().parent.name, x=0.01, ha="left", weight="bold")
        for axes, fields in zip(figure.subplots(1, len(panels)), panels):
            for name in fields:
                values = [math.nan if line[name] is None else line[name] for line in lines]
                label = f"{name.replace('_', ' ')}: {values[-1]:,.5g}"
                axes.plot([line[key] for line in lines], values, "o-", label=label)
            axes.set(xlabel=key)
            axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
            axes.legend()
        axes.set_ylim(bottom=0)  # the speed
        axes.yaxis.set_major_formatter("{x:,.0f}")

    if lines:
        write_picture(picture, draw, width=4 * len(panels))


def identity_in(path: Path, is_new: bool) -> str:
    """Return the identity of a run that an earlier start wrote; the file may be empty after a kill."""
    return "" if is_new or not path.exists() else read_file(path, 100).decode(errors="replace")


# Each opens one of the programs that show a training, and returns what logs values to it, and what closes it with an
# exit status; ImportError if its package is absent. A resumed training continues the run that it had.


def open_tensorboard(directory: Path, options: Mapping[str, object], first_epoch: int, _is_new: bool) -> Tracker:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(directory / "tensorboard", purge_step=first_epoch + 1)  # hides what will be repeated
    if first_epoch == 0:
        writer.add_text("options", "\n".join(f"    {name}: {options[name]}" for name in options))

    def log(values: Mapping, number: int) -> None:
        for name, value in numbers_of(values).items():
            writer.add_scalar(name, value, number)
        writer.flush()

    return log, lambda _status: writer.close()


def open_wandb(directory: Path, options: Mapping[str, object], _first_epoch: int, is_new: bool) -> Tracker:
    import wandb

    path = directory / "wandb" / "id"
    path.parent.mkdir(exist_ok=True)
    identity = identity_in(path, is_new) or secrets.token_hex(4)
    write_file(path, identity.encode())
    run = wandb.init(
        project=options["wandb"],
        id=identity,
        resume="allow",
        dir=directory,
        config={name: value if isinstance(value, (int, float)) else str(value) for name, value in options.items()},
        settings=wandb.Settings(console="off"),  # the output is in the job's log
    )
    return lambda values, number: run.log(values, step=number), lambda status: run.finish(exit_code=status)


def open_mlflow(directory: Path, options: Mapping[str, object], _first_epoch: int, is_new: bool) -> Tracker:
    import mlflow

    path = directory / "mlflow.id"
    identity = identity_in(path, is_new)
    for name, value in (("REQUEST_MAX_RETRIES", "1"), ("REQUEST_TIMEOUT", "10")):  # by default minutes, for all ranks
        os.environ.setdefault(f"MLFLOW_HTTP_{name}", value)
    address = os.environ.get("MLFLOW_TRACKING_URI")
    if not address:
        database = directory.resolve() / "mlflow.db"
        sqlite3.connect(database).execute("PRAGMA schema_version")  # MLflow tries for 100 s to open what cannot be
        address = f"sqlite:///{database}"
    mlflow.set_tracking_uri(address)
    run = mlflow.start_run(run_id=identity or None, run_name=None if identity else directory.resolve().name)
    if not identity:
        mlflow.log_params({name: str(value) for name, value in options.items()})
        write_file(path, run.info.run_id.encode())
    return (
        lambda values, number: mlflow.log_metrics(numbers_of(values), step=number),
        lambda status: mlflow.end_run("FAILED" if status else "FINISHED"),
    )


#: What opens a tracker, and what a user can do if that fails.
TRACKERS = {
    "tensorboard": (open_tensorboard, "Check {0}/tensorboard"),
    "wandb": (open_wandb, "Log in with `wandb login`, or export WANDB_MODE=offline; else check {0}/wandb"),
    "mlflow": (open_mlflow, "Check MLFLOW_TRACKING_URI, or unset it to use {0}, and check {0}/mlflow.db"),
}


def reason(error: Exception) -> str:
    """Return the first line of an error, without a password in an address."""
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return re.sub(r"//[^/@\s]*@", "//", first).rstrip(".")


def attempt(name: str, what: object, call: Callable, *arguments: object) -> None:
    """Call a tracker; one that fails, such as a server, ends no training."""
    try:
        call(*arguments)
    except Exception as error:
        print(f"--{name}: {reason(error)}: {what} is not recorded there", flush=True)


def numbers_of(values: Mapping[str, object]) -> dict:
    return {name: value for name, value in values.items() if isinstance(value, (int, float))}


class Metrics:
    """The record of one training in its output directory; without a directory nothing is written.

    >>> with Metrics(directory, options=vars(options), first_epoch=2) as metrics:
    ...     metrics.epoch(3, loss=0.09, accuracy=98.1, ...)

    ``metrics.jsonl`` holds one JSON object per epoch, or per what else ``key`` numbers. ``first_epoch`` is the
    number of completed epochs: lines of later epochs are removed, so that a resumed training repeats none, and the
    curves are drawn at once. A ``with`` block draws the curves again, unless an exception ends it. ``options`` are
    logged to the programs that they name: ``tensorboard``, ``wandb`` (a project) and ``mlflow``. Raises TrainingError
    if a file cannot be written or a package is missing.
    """

    def __init__(
        self, directory: Path | None, *, options: Mapping[str, object], first_epoch: int = 0, key: str = "epoch"
    ):
        self.directory, self.key = directory, key
        self.trackers: dict[str, Tracker] = {}
        if directory is None:
            return
        self.path = directory / METRICS_FILE
        with writing(self.path):
            own = self.read_own()
        self.lines = [as_line(line) for line in own if line[key] <= first_epoch]
        self.write()
        is_new = first_epoch == 0 and bool(own)
        for name in filter(options.get, TRACKERS):
            start, remedy = TRACKERS[name]
            try:
                self.trackers[name] = start(directory, options, first_epoch, is_new)
            except ImportError as error:
                raise TrainingError(
                    f"--{name} needs a package that is not installed ({error}). Run: pip install {name}"
                ) from None
            except Exception as error:  # each package raises types of its own
                raise TrainingError(f"--{name}: {reason(error)}. {remedy.format(directory)}") from None
        draw_curves(self.path, directory / PICTURE, key)

    @classmethod
    def of(cls, options: argparse.Namespace, rank: int, first_epoch: int, key: str = "epoch") -> Metrics:
        """Return the metrics of a training script on its first rank; those of other ranks write nothing."""
        return cls(None if rank else options.modelpath, options=vars(options), first_epoch=first_epoch, key=key)

    def epoch(self, number: int, **values: float | str | None) -> None:
        """Record an epoch, or what else ``key`` numbers, counted from 1.

        ``loss`` is the mean over the training images, ``accuracy`` is in per cent;
        ``images_per_second`` and ``seconds`` exclude the evaluation. Call it before the checkpoint of
        the epoch is written: after a kill between the two, the epoch is repeated and its line
        replaced; in the other order, its line would be missing. Other values are further fields.
        """
        if self.directory:
            # JSON cannot express a loss that is not a finite number.
            finite = {
                name: value if value is None or isinstance(value, str) or math.isfinite(value) else None
                for name, value in values.items()
            }
            was_deleted = bool(self.lines) and not self.path.exists()
            self.lines.append(as_line({self.key: number, **finite}))
            self.write()
            if was_deleted:
                print(f"{self.path}: was deleted while this program ran; all its lines are written again", flush=True)
        for name, (log, _close) in self.trackers.items():
            attempt(name, number, log, values, number)

    def write(self) -> None:
        """Write all lines, completely or not at all: a kill leaves no part of one."""
        if self.path.is_symlink():
            raise TrainingError(f"{self.path}: a symbolic link, which is not followed. Remove it")
        with writing(self.path):
            write_file(self.path, b"".join(self.lines))

    def read_own(self) -> list[dict]:
        """Return the values of each epoch; TrainingError if the file has none, and so belongs to another program."""
        lines, own = read_objects(self.path), read_epochs(self.path, self.key)
        if lines and not own:
            raise TrainingError(
                f"{self.path}: holds no line of a training: it belongs to another program. Move it, or choose "
                "another directory with --modelpath"
            )
        if len(own) < len(lines):
            print(f"{self.path}: {len(lines) - len(own)} damaged lines are removed", flush=True)
        return own

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, fault: type[BaseException] | None, *_: object) -> None:
        for name, (_log, close) in self.trackers.items():
            attempt(name, "the end", close, int(fault is not None))
        if self.directory and fault is None:
            draw_curves(self.path, self.directory / PICTURE, self.key)
