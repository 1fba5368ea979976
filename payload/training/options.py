"""The command line of the training scripts; it is read before torch is imported: --help answers at once."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, and ends with status 2."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def training_parser(
    description: str, gpu: str = "one GPU per rank, with NCCL (default: CPU, with gloo)"
) -> OneLineParser:
    """Return a parser of the options that every training script has; ``gpu`` is the help of --gpu."""
    parser = OneLineParser(description=description)
    add = parser.add_argument
    add("--gpu", action="store_true", help=gpu)
    add("--epochs", type=int, default=3, help="(default: %(default)s)")
    add("--batch-size", type=int, default=256, metavar="SAMPLES",
        help="in one step, over all ranks (default: %(default)s)")  # fmt: skip
    add("--lr", type=float, default=0.01, help="peak learning rate (default: %(default)s)")
    add("--seed", type=int, default=0, help="of weights and order (default: %(default)s)")
    add("--data", type=Path, metavar="DIR", default=os.environ.get("MNIST_ROOT") or None,
        help="the MNIST files (default: $MNIST_ROOT, else a drawn digits set)")  # fmt: skip
    add("--download", action="store_true", help="fetch the files that DIR lacks; one process does")
    return parser


def parse_arguments(arguments: list[str], description: str = "") -> argparse.Namespace:
    """Return the options of mnist_ddp.py; a line and exit status 2 where one makes no sense."""
    parser = training_parser(description)
    add = parser.add_argument
    add("--batch-per-rank", type=int, metavar="SAMPLES",
        help="in one step on each rank, in place of --batch-size")  # fmt: skip
    add("--scale-lr", action="store_true", help="multiply --lr by the number of ranks")
    add("--warmup", type=float, metavar="EPOCHS",
        help="in which the learning rate rises to its peak (default: a quarter of all)")  # fmt: skip
    add("--timeout", type=float, default=300, metavar="SECONDS",
        help="to wait for another rank before giving up (default: %(default)s)")  # fmt: skip
    add("--validation", type=float, metavar="SHARE",
        help="of the training images to hold out: accuracies are theirs, the test comes at the end")  # fmt: skip
    add("--plain", action="store_true", help="the textbook's way to batches: a DataLoader")
    add("--compile", action="store_true", help="compile the network; needs a C++ compiler or Triton")
    add("--bf16", action="store_true", help="compute in bfloat16 where autocast does")
    add("--modelpath", type=Path, metavar="DIR",
        help="write model, checkpoints and metrics to DIR; a second start goes on from there")  # fmt: skip
    add("--keep", type=int, default=3, metavar="K", help="newest checkpoints (default: %(default)s)")
    add("--restart", action="store_true", help="delete the checkpoints in DIR and begin anew")
    add("--tensorboard", action="store_true", help="write to DIR/tensorboard as well")
    add("--wandb", metavar="PROJECT", help="report to Weights & Biases as well")
    options = parser.parse_args(arguments)
    check(options, parser)
    return options


def check(options: argparse.Namespace, parser: OneLineParser) -> None:
    """End with a line and status 2 where the value of an option, of those there are, makes no sense."""
    given = {name: value for name, value in vars(options).items() if value is not None}
    for name in ("epochs", "batch_size", "batch_per_rank", "lr", "timeout", "keep"):
        if name in given and not 0 < given[name] < math.inf:
            parser.error(f"--{name.replace('_', '-')} must be finite and above 0, found {given[name]}")
    if not 0 <= options.seed < 2**32:
        parser.error(f"--seed must be from 0 to 2^32 - 1, found {options.seed}")
    if options.download and options.data is None:
        parser.error("--download needs --data or MNIST_ROOT")
    if "warmup" in given and not 0 <= options.warmup < options.epochs:
        parser.error(f"--warmup must be from 0 to below --epochs, found {options.warmup}")
    if "validation" in given and not 0 < options.validation < 1:
        parser.error(f"--validation must be above 0 and below 1, found {options.validation}")
    for name in ("restart", "tensorboard", "wandb"):
        if given.get(name) and not options.modelpath:
            parser.error(f"--{name} needs --modelpath")
