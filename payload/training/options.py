# SPDX-License-Identifier: BSD-3-Clause
"""The command line of the training scripts. It does not import torch, so --help answers at once."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path


class OneLineParser(argparse.ArgumentParser):
    """Reports a wrong command line in one line and exits with status 2."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message}. See --help\n")


def training_parser(
    description: str, gpu: str = "one GPU per rank, with NCCL or XCCL (default: CPU, with gloo)"
) -> OneLineParser:
    """Return a parser of the options that all training scripts have; ``gpu`` is the help text of --gpu."""
    parser = OneLineParser(description=description)
    add = parser.add_argument
    add("--gpu", action="store_true", help=gpu)
    add("--epochs", type=int, default=3, help="(default: %(default)s)")
    add(
        "--batch-size", type=int, default=256, metavar="SAMPLES", help="per step, over all ranks (default: %(default)s)"
    )
    add("--lr", type=float, default=0.01, help="peak learning rate (default: %(default)s)")
    add("--seed", type=int, default=0, help="for the weights and the order (default: %(default)s)")
    add(
        "--data",
        type=Path,
        metavar="DIR",
        default=os.environ.get("MNIST_ROOT") or None,
        help="directory of the MNIST files (default: $MNIST_ROOT, else generated digits)",
    )
    add("--download", action="store_true", help="download missing files to DIR, once for all ranks")
    return parser


def add_health(parser: argparse.ArgumentParser) -> None:
    """Add --health: None without it, 0 without a number of steps."""
    parser.add_argument(
        "--health",
        type=int,
        nargs="?",
        const=0,
        metavar="STEPS",
        help="report the slowest rank after each epoch, and after every STEPS steps",
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options about what a training writes."""
    add = parser.add_argument
    add(
        "--modelpath",
        type=Path,
        metavar="DIR",
        help="write model, checkpoints and metrics to DIR; the next start resumes from there",
    )
    add("--keep", type=int, default=3, metavar="K", help="number of checkpoints to keep (default: %(default)s)")
    add("--restart", action="store_true", help="delete the checkpoints in DIR and start from scratch")
    add("--tensorboard", action="store_true", help="also write to DIR/tensorboard")
    add("--wandb", metavar="PROJECT", help="also report to Weights & Biases")


def parse_arguments(arguments: list[str], description: str = "") -> argparse.Namespace:
    """Return the options of mnist_ddp.py; exit with a line and status 2 if one is invalid."""
    parser = training_parser(description)
    add = parser.add_argument
    add("--batch-per-rank", type=int, metavar="SAMPLES", help="per step on each rank; overrides --batch-size")
    add("--scale-lr", action="store_true", help="multiply --lr by the number of ranks")
    add(
        "--warmup",
        type=float,
        metavar="EPOCHS",
        help="during which the learning rate rises to its peak (default: a quarter of all)",
    )
    add("--timeout", type=float, default=300, metavar="SECONDS", help="to wait for other ranks (default: %(default)s)")
    add(
        "--validation",
        type=float,
        metavar="SHARE",
        help="of the training images to hold out: epochs report their accuracy; the test runs at the end",
    )
    add_health(parser)
    add("--compile", action="store_true", help="compile the network; requires a C++ compiler or Triton")
    add("--bf16", action="store_true", help="compute in bfloat16 where autocast can")
    add_output(parser)
    options = parser.parse_args(arguments)
    check(options, parser)
    return options


def check_common(options: argparse.Namespace, parser: OneLineParser, positive: tuple[str, ...]) -> dict:
    """Exit with a line and status 2 if an option of several scripts has an invalid value; return those with a value."""
    given = {name: value for name, value in vars(options).items() if value is not None}
    for name in (*positive, "batch_size", "lr", "timeout", "keep"):
        if name in given and not 0 < given[name] < math.inf:
            parser.error(f"--{name.replace('_', '-')} must be finite and above 0, found {given[name]}")
    if not 0 <= options.seed < 2**32:
        parser.error(f"--seed must be from 0 to 2^32 - 1, found {options.seed}")
    if given.get("health", 0) < 0:
        parser.error(f"--health must be 0 or more, found {options.health}")
    for name in ("restart", "tensorboard", "wandb"):
        if given.get(name) and not options.modelpath:
            parser.error(f"--{name} needs --modelpath")
    return given


def check(options: argparse.Namespace, parser: OneLineParser) -> None:
    """Exit with a line and status 2 if an option of a training script has an invalid value."""
    given = check_common(options, parser, ("epochs", "batch_per_rank"))
    if options.download and options.data is None:
        parser.error("--download needs --data or MNIST_ROOT")
    if "warmup" in given and not 0 <= options.warmup < options.epochs:
        parser.error(f"--warmup must be from 0 to below --epochs, found {options.warmup}")
    if "validation" in given and not 0 < options.validation < 1:
        parser.error(f"--validation must be above 0 and below 1, found {options.validation}")
