# SPDX-License-Identifier: BSD-3-Clause
"""The command line of lm_fsdp.py, and its models. It does not import torch, so --help answers at once."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from training.options import HALF_HOUR, integer, number, parse, parse_interval, path, training_parser


class Shape(NamedTuple):
    """The number of blocks of a model, their width, and their heads, which ranks can divide among them."""

    layers: int
    width: int
    heads: int


#: A block has 12 * width^2 weights, so these have about as many parameters as their names tell.
SHAPES = {
    "100K": Shape(2, 64, 4),
    "1M": Shape(5, 128, 4),
    "10M": Shape(8, 320, 5),
    "124M": Shape(10, 1024, 16),
    "350M": Shape(28, 1024, 16),
    "1B": Shape(20, 2048, 32),
}


def parse_arguments(arguments: list[str], description: str = "") -> argparse.Namespace:
    """Return the options of lm_fsdp.py; exit with a line and status 2 if one is invalid."""
    parser = training_parser(description, lr=0.002, batch_size=16, unit="WINDOWS")
    add = parser.add_argument
    add("--size", choices=SHAPES, default="1M", help="parameters of the model, about (default: %(default)s)")
    add("--context", type=integer(1), default=128, metavar="BYTES", help="length of a window (default: %(default)s)")
    add(
        "--data",
        type=path,
        metavar="FILE",
        help="a file with the text (default: the source of Python's standard library)",
    )
    add("--steps", type=integer(1), default=100, help="(default: %(default)s)")
    add(
        "--micro-batch",
        type=integer(1),
        metavar="WINDOWS",
        help="on a rank at a time; gradients accumulate (default: a rank's share of --batch-size)",
    )
    add(
        "--warmup",
        type=integer(0),
        metavar="STEPS",
        help="during which the learning rate rises to its peak (default: a tenth of all)",
    )
    add(
        "--clip", type=number(), default=1.0, metavar="NORM", help="largest norm of the gradient (default: %(default)s)"
    )
    add(
        "--replicas",
        type=integer(1),
        default=1,
        metavar="N",
        help="copies of the model, each divided among consecutive ranks (default: %(default)s)",
    )
    add(
        "--tensor",
        type=integer(1),
        default=1,
        metavar="N",
        help="consecutive ranks that divide heads and layers of each block (default: %(default)s)",
    )
    add("--recompute", action="store_true", help="activation checkpointing: less memory, more time")
    add(
        "--interval",
        type=integer(1),
        metavar="STEPS",
        help="between two lines with the validation loss (default: a tenth of all)",
    )
    add(
        "--peak-tflops",
        type=number(),
        metavar="N",
        help="of a device in bfloat16: lines end with the utilisation, the share of this peak",
    )
    add(
        "--every",
        type=parse_interval,
        default=HALF_HOUR,
        metavar="STEPS|TIME",
        help="write a checkpoint every 500 steps, or every 90s, 30m or 2h (default: 30m)",
    )
    options = parse(parser, arguments, length="steps")
    if options.tensor > 1 and (options.compile or options.health):
        parser.error("--tensor: not with --compile or --health, as ranks wait for each other within a block")
    if options.warmup is None:
        options.warmup = options.steps // 10
    options.interval = options.interval or max(1, options.steps // 10)
    return options
