"""What each epoch reached: metrics.jsonl, its curves, TensorBoard and Weights & Biases.

Used by rank 0 of mnist_ddp.py alone; search.py reads what it wrote. The packages are imported where
they are needed: a training without them needs none.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

from training import TrainingError
from training.files import read_file, write_file

METRICS_FILE = "metrics.jsonl"
PICTURE = "curves.png"
VALUES = ("loss", "accuracy", "images_per_second", "learning_rate", "seconds", "world_size")
MOST_BYTES = 2**26  # of metrics.jsonl: some 400,000 epochs
# Okabe and Ito's colours, which the colour-blind tell apart: https://jfly.uni-koeln.de/color
BLUE, GREEN, ORANGE, GREY = "#0072B2", "#009E73", "#D55E00", "#666666"


class Metrics:
    """The record of one training, in its output directory; with ``None`` nothing is written.

    >>> with Metrics(directory, options=vars(options), first_epoch=2) as metrics:
    ...     metrics.epoch(3, loss=0.09, accuracy=98.1, ...)

    ``metrics.jsonl`` holds one JSON object per epoch. ``first_epoch`` is the number of epochs that
    are done: lines of later ones are dropped, so that a resumed training repeats none, and the curves are
    drawn at once. A damaged line is left out; the file as it was is kept beside it as
    ``metrics.jsonl.damaged``, or ``.damaged.1`` and so on. A file without a line of this class is another
    program's and is refused. The curves are drawn again by ``close``, which also the end of a ``with`` block
    calls, unless an exception ends it. ``options`` are noted with TensorBoard and with Weights & Biases,
    whose project is ``wandb``; one of them, "validation", tells of which images the accuracies are. Raises
    TrainingError where a file cannot be written or a package is missing.
    """

    def __init__(
        self,
        directory: Path | None,
        *,
        options: Mapping[str, object],
        first_epoch: int = 0,
        tensorboard: bool = False,
        wandb: str | None = None,
    ):
        self.directory = directory
        self.writer = self.run = None
        self.drawable = True
        self.judges = "validation" if options.get("validation") else "test"
        if directory is None:
            if tensorboard or wandb:
                raise TrainingError(
                    "--tensorboard and --wandb write into the directory of --modelpath, and none "
                    "was named; add --modelpath DIR"
                )
            return
        self.path = directory / METRICS_FILE
        try:
            lines, damaged = self.read_lines()
            begun_anew = bool(lines) and first_epoch == 0
            done = [line for line in lines if json.loads(line)["epoch"] <= first_epoch]
            if damaged:
                aside = self.keep_aside()
                print(f"{self.path}: {damaged} damaged lines are left out; the file is kept as {aside}", flush=True)
            write_file(self.path, b"".join(done))
        except OSError as error:
            raise self.cannot_be_written(error) from error
        if tensorboard:
            self.writer = open_tensorboard(directory, options, first_epoch)
        if wandb:
            self.run = open_wandb(directory, options, wandb, begun_anew)
        if done:
            self.draw()

    def epoch(
        self,
        epoch: int,
        *,
        loss: float,
        accuracy: float,
        images_per_second: float,
        learning_rate: float,
        seconds: float,
        world_size: int,
    ) -> None:
        """Record an epoch, counted from 1.

        ``loss`` is the mean over the training images, ``accuracy`` in per cent,
        ``images_per_second`` and ``seconds`` are the training's. Call it before the epoch's
        checkpoint is written: after a kill between the two the epoch is repeated, and its line
        dropped; the other way round its line would be missing.
        """
        values = dict(zip(VALUES, (loss, accuracy, images_per_second, learning_rate, seconds, world_size)))
        if self.directory:
            # JSON has no word for a loss that is not a number.
            finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
            try:
                self.append(json.dumps({"epoch": epoch, **finite}).encode() + b"\n")
            except OSError as error:
                raise self.cannot_be_written(error) from error
        if self.writer:
            for name, value in values.items():
                self.writer.add_scalar(name, value, epoch)
            self.writer.flush()
        if self.run:
            self.run.log(values, step=epoch)

    def read_lines(self) -> tuple[list[bytes], int]:
        """Return the lines of epochs, and how many others there are; TrainingError if all are others."""
        if not self.path.is_symlink() and not self.path.exists():
            return [], 0
        *lines, rest = read_file(self.path, MOST_BYTES, follow_links=False).split(b"\n")
        own = [line + b"\n" for line in lines if is_record(read_object(line))]
        if not is_cut_short(rest):
            lines.append(rest)
        if lines and not own:
            raise TrainingError(
                f"{self.path}: holds no line of a training, so it is of another program. Move it away, or name "
                "another directory with --modelpath"
            )
        return own, len(lines) - len(own)

    def keep_aside(self) -> Path:
        """Copy the file to a name that is free, which is returned; it stays where it is until it is replaced."""
        names = (f"{METRICS_FILE}.damaged{f'.{number}' if number else ''}" for number in count())
        aside = next(path for path in map(self.path.with_name, names) if not (path.is_symlink() or path.exists()))
        write_file(aside, read_file(self.path, MOST_BYTES, follow_links=False))
        return aside

    def append(self, line: bytes) -> None:
        """Add a line to the file, whatever has become of it; a link is not followed."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(self.path, flags, 0o666), "ab") as file:  # noqa: PTH123 (a descriptor)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Draw the curves and end the records of TensorBoard and Weights & Biases."""
        self.end()
        if self.directory:
            self.draw()

    def draw(self) -> None:
        if self.drawable:  # why not is said once
            self.drawable = draw_curves(self.path, self.directory / PICTURE, self.judges)

    def end(self, status: int = 0) -> None:
        if self.writer:
            self.writer.close()
        if self.run:
            self.run.finish(exit_code=status)

    def cannot_be_written(self, error: OSError) -> TrainingError:
        return TrainingError(
            f"{self.path}: cannot be written ({error.strerror}); free some space or name another "
            "directory with --modelpath"
        )

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, fault: type[BaseException] | None, *_: object) -> None:
        if fault is None:
            self.close()
        else:
            self.end(status=1)


def read_object(line: bytes) -> dict | None:
    """Return the JSON object of a line, None where it is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_record(line: dict | None) -> bool:
    """Return whether an object is what ``Metrics.epoch`` writes: the epoch, and numbers or null."""
    return (
        line is not None
        and type(line.get("epoch")) is int
        and line["epoch"] > 0
        and all(name in line and (line[name] is None or finite_number(line[name]) is not None) for name in VALUES)
    )


def is_cut_short(rest: bytes) -> bool:
    """Return whether the end of a file, after its last newline, is the beginning of what ``Metrics.epoch`` writes."""
    form = json.dumps(dict.fromkeys(("epoch", *VALUES), 0)).encode()
    return form.startswith(re.sub(rb"(?<=: )[-+.\denul]+", b"0", rest))  # numbers or null


def finite_number(value: object) -> float | None:
    """Return a number as a float, None where it is no number or not finite."""
    if type(value) not in (int, float) or not -1e308 < value < 1e308:
        return None
    return float(value)


def read_objects(path: Path) -> list[dict]:
    """Return the JSON objects in a file, one of each whole line that holds one; none where there is no file.

    Raises TrainingError where it is no regular file or far too large.
    """
    try:
        *lines, _cut_short = read_file(path, MOST_BYTES).split(b"\n")
    except FileNotFoundError:
        return []
    return [value for value in map(read_object, lines) if value is not None]


def read_epochs(path: Path) -> list[dict]:
    """Return what a metrics.jsonl says of each epoch, in order; nothing where there is no file."""
    return [value for value in read_objects(path) if is_record(value)]


def open_tensorboard(directory: Path, options: Mapping[str, object], first_epoch: int):
    """Return a SummaryWriter to ``directory``/tensorboard that hides epochs to be repeated."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise TrainingError(
            f"--tensorboard needs a package that is not installed ({error}): pip install tensorboard"
        ) from None
    writer = SummaryWriter(directory / "tensorboard", purge_step=first_epoch + 1)
    if first_epoch == 0:
        writer.add_text("options", "\n".join(f"    {name}: {options[name]}" for name in options))
    return writer


def open_wandb(directory: Path, options: Mapping[str, object], project: str, begun_anew: bool):
    """Return a run of Weights & Biases, the same one as before unless the training began anew."""
    try:
        import wandb
    except ImportError as error:
        raise TrainingError(
            f"--wandb needs a package that is not installed ({error}): pip install wandb"
        ) from None
    name = directory / "wandb" / "id"
    name.parent.mkdir(exist_ok=True)
    identity = read_file(name, 100).decode(errors="replace") if name.exists() and not begun_anew else ""
    if not identity:  # a kill may have left it empty
        identity = secrets.token_hex(4)
        write_file(name, identity.encode())
    try:
        return wandb.init(
            project=project,
            id=identity,
            resume="allow",
            dir=directory,
            config={
                name: value if isinstance(value, (int, float)) else str(value)
                for name, value in options.items()
            },
            settings=wandb.Settings(console="off"),  # the job's log has what is printed
        )
    except wandb.errors.Error as error:
        raise TrainingError(
            f"--wandb {project}: {str(error).splitlines()[0].rstrip('.')}; log in with `wandb login`, or "
            "export WANDB_MODE=offline and `wandb sync` later"
        ) from None


def draw_curves(metrics_file: Path, picture: Path, judges: str = "test") -> bool:
    """Draw loss, accuracy and images/s of a metrics.jsonl over its epochs as a PNG, if it has any.

    ``judges`` says of which images the accuracies are: "test" or "validation". Returns False where a
    line had to say why there is no picture.
    """
    epochs = read_epochs(metrics_file)
    if not epochs:
        return True

    def draw(figure) -> None:
        def column(name: str) -> list[float]:
            return [math.nan if line[name] is None else line[name] for line in epochs]

        numbers, losses, accuracies, speeds = map(
            column, ("epoch", "loss", "accuracy", "images_per_second")
        )
        best = max(range(len(epochs)), key=lambda at: (accuracies[at], -at))

        figure.suptitle(picture.absolute().parent.name, x=0.01, ha="left", weight="bold")
        loss, accuracy, speed = figure.subplots(1, 3)
        for panel in (loss, accuracy, speed):
            panel.set(xlabel="epoch", xlim=(numbers[0] - 0.5, numbers[-1] + 0.5))
            panel.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        loss.plot(numbers, losses, "o-", color=BLUE)
        loss.set(title=f"Training loss: {losses[-1]:.4f}", ylabel="mean over the training images")
        accuracy.plot(numbers, accuracies, "o-", color=GREEN)
        accuracy.plot(numbers[best], accuracies[best], "*", color=GREEN, markersize=14)
        accuracy.set(
            title=f"{judges.capitalize()} accuracy: {accuracies[-1]:.2f} %, at best {accuracies[best]:.2f} %",
            ylabel=f"% of the {judges} images",
        )
        speed.plot(numbers, speeds, "o-", color=ORANGE)
        speed.set(title=f"Speed: {speeds[-1]:,.0f} images/s", ylabel="images/s")
        speed.set_ylim(0, 1.1 * max(speeds))
        speed.yaxis.set_major_formatter("{x:,.0f}")
        before = None
        for line in epochs:  # where the training went on with another number of ranks
            size = line["world_size"]
            if size != before:
                ranks = f" {size} rank" + "s" * (size > 1)
                start = line["epoch"] - 0.5
                speed.text(start, 0.03, ranks, transform=speed.get_xaxis_transform())
                if before:
                    speed.axvline(start, color=GREY, linestyle=":")
            before = size

    return write_picture(picture, draw, width=12)


def write_picture(picture: Path, draw: Callable, *, width: float) -> bool:
    """Let ``draw`` fill a figure of ``width`` inches and write it, whole or not at all.

    A picture is not worth a training: where it cannot be made, a line says why. Returns whether
    it was made.
    """
    style = {
        "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
        "axes.formatter.useoffset": False, "axes.titlesize": 11, "axes.titlelocation": "left",
        "font.size": 9, "lines.markersize": 4,
    }  # fmt: skip
    temporary = picture.with_name(f".{picture.name}.{secrets.token_hex(4)}")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure

        with rc_context(style):
            figure = Figure(figsize=(width, 3.6), dpi=120, layout="constrained")
            draw(figure)
            figure.savefig(temporary, format="png")
        temporary.replace(picture)
    except ImportError as error:
        print(f"no {picture} ({error}): pip install matplotlib", flush=True)
        return False
    except OSError as error:
        print(f"no {picture}: cannot be written ({error.strerror})", flush=True)
        return False
    except Exception as error:  # whatever matplotlib, its settings and its fonts can raise
        print(f"no {picture}: {error}", flush=True)
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True
