# SPDX-License-Identifier: BSD-3-Clause
"""The command line of the training scripts. It does not import torch, so --help answers at once."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class OneLineParser(argparse.ArgumentParser):
    """Reports a wrong command line in one line, on rank 0 alone, and exits with status 2."""

    def error(self, message: str):
        if os.environ.get("RANK") not in (None, "", "0"):  # all ranks have the same command line, and end with it
            self.exit(2)
        self.exit(2, f"{self.prog}: {message}. See --help\n")


def integer(least: int) -> Callable[[str], int]:
    """Return what reads a whole number of at least ``least``, for argparse."""

    def integer(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, found {text}")
        return value

    return integer


def number(above: float = 0, most: float = 1e9) -> Callable[[str], float]:
    """Return what reads a number above ``above``, and at most ``most``, for argparse."""

    def number(text: str) -> float:
        value = float(text)
        if not above < value <= most:
            raise argparse.ArgumentTypeError(f"must be a number above {above} and up to {most:g}, found {text}")
        return value

    return number


def text(given: str) -> str:
    """Return a text that is not empty, for argparse: an empty one is a variable of the shell that is not set."""
    if not given.strip():
        raise argparse.ArgumentTypeError("is empty. Set the variable that names it")
    return given


def path(given: str) -> Path:
    """Return a path that is not empty, for argparse: Path("") is the working directory."""
    return Path(text(given))


class Interval(NamedTuple):
    """How often a checkpoint is written: after a number of steps, or of seconds; the other one is 0."""

    steps: int = 0
    seconds: float = 0


HALF_HOUR = Interval(seconds=1800)


def parse_interval(text: str) -> Interval:
    """Return the interval of ``500``, ``90s``, ``30m`` or ``1.5h``; argparse.ArgumentTypeError for other texts."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smh])|(\d{1,9})", text)
    if match:
        length, unit, steps = match.groups(default="0")
        if int(steps):
            return Interval(steps=int(steps))
        if float(length):
            return Interval(seconds=float(length) * {"s": 1, "m": 60, "h": 3600}[unit])
    raise argparse.ArgumentTypeError(f"must be a number of steps, or a time such as 90s, 30m or 2h, found {text}")


def ranks(given: str) -> list[int]:
    """Return the ranks in ``0`` or ``0,8``, for argparse."""
    return [integer(0)(word) for word in given.split(",")]


def training_parser(description: str, *, lr: float, batch_size: int, unit: str) -> OneLineParser:
    """Return a parser of the options that all training scripts have, with these defaults; ``unit`` is of the batch."""
    parser = OneLineParser(description=description, allow_abbrev=False)
    add = parser.add_argument
    add("--gpu", action="store_true", help="one GPU per rank, with NCCL (default: CPU, with gloo)")
    add("--lr", type=number(), default=lr, help="peak learning rate (default: %(default)s)")
    add(
        "--batch-size",
        type=integer(1),
        default=batch_size,
        metavar=unit,
        help="per step, over all ranks (default: %(default)s)",
    )
    add("--seed", type=integer(0), default=0, help="for the weights and the order (default: %(default)s)")
    add("--bf16", action="store_true", help="compute in bfloat16; weights stay float32")
    add("--compile", action="store_true", help="compile the network; requires a C++ compiler or Triton")
    add("--timeout", type=number(), default=300, metavar="SECONDS", help="to wait for others (default: %(default)s)")
    add(
        "--modelpath",
        type=path,
        metavar="DIR",
        help="write checkpoints and results to DIR; the next start resumes from there",
    )
    add("--keep", type=integer(1), default=3, metavar="K", help="number of checkpoints to keep (default: %(default)s)")
    add("--restart", action="store_true", help="delete the checkpoints in DIR and start from scratch")
    add(
        "--profile",
        type=path,
        nargs="?",
        const=Path("profile"),
        metavar="DIR",
        help="profile a few steps, and write traces to DIR (default: profile)",
    )
    add("--profile-ranks", type=ranks, default=[0], metavar="RANKS", help="such as 0,8 (default: 0)")
    add("--tensorboard", action="store_true", help="also write to DIR/tensorboard")
    add("--wandb", type=text, metavar="PROJECT", help="also report to Weights & Biases")
    add("--mlflow", action="store_true", help="also report to MLflow, where MLFLOW_TRACKING_URI says")
    add("--health", action="store_true", help="report the slowest rank after each epoch")
    return parser


def parse_arguments(arguments: list[str], description: str = "") -> argparse.Namespace:
    """Return the options of mnist_ddp.py; exit with a line and status 2 if one is invalid."""
    parser = training_parser(description, lr=0.01, batch_size=256, unit="SAMPLES")
    add = parser.add_argument
    add(
        "--data",
        type=path,
        metavar="DIR",
        default=os.environ.get("MNIST_ROOT") or None,
        help="directory of the MNIST files (default: $MNIST_ROOT, else generated digits)",
    )
    add("--epochs", type=integer(1), default=3, help="(default: %(default)s)")
    add("--batch-per-rank", type=integer(1), metavar="SAMPLES", help="per step on each rank; overrides --batch-size")
    add(
        "--warmup",
        type=float,
        metavar="EPOCHS",
        help="during which the learning rate rises to its peak (default: a quarter of all)",
    )
    add(
        "--validation",
        type=number(0, 0.99),
        metavar="SHARE",
        help="of the training images to hold out: epochs report their accuracy; the test runs at the end",
    )
    return parse(parser, arguments, length="epochs")


def parse(parser: OneLineParser, arguments: list[str], length: str) -> argparse.Namespace:
    """Return the options of a training script, of which ``length`` is the one with the length of the training.

    Exits with a line and status 2 if options contradict each other.
    """
    options = parser.parse_args(arguments)
    for name in ("restart", "tensorboard", "wandb", "mlflow"):
        if getattr(options, name, None) and not options.modelpath:
            parser.error(f"--{name} needs --modelpath")
    whole = getattr(options, length)
    if options.warmup is not None and not 0 <= options.warmup < whole:
        parser.error(f"--warmup must be from 0 to below {whole}, the whole training, found {options.warmup}")
    return options
