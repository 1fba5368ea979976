# SPDX-License-Identifier: BSD-3-Clause
"""The command line of lm_fsdp.py. It does not import torch, so --help answers at once."""

from __future__ import annotations

import argparse

from training.options import Interval, OneLineParser, add_output, check_common, integer, number, parse_interval, path

SIZES = ("100K", "1M", "10M", "124M", "350M", "1B")


def parse_arguments(arguments: list[str], description: str = "") -> argparse.Namespace:
    """Return the options of lm_fsdp.py; exit with a line and status 2 if one is invalid."""
    parser = OneLineParser(description=description)
    add = parser.add_argument
    add("--gpu", action="store_true", help="one GPU per rank, with NCCL or XCCL (default: CPU, with gloo)")
    add("--size", choices=SIZES, default="1M", help="parameters of the model, about (default: %(default)s)")
    add("--context", type=integer(1), default=128, metavar="BYTES", help="length of a window (default: %(default)s)")
    add(
        "--data",
        type=path,
        metavar="PATH",
        help="the text: a file, or a directory (default: the source of Python's standard library)",
    )
    add("--steps", type=integer(1), default=100, help="(default: %(default)s)")
    add(
        "--batch-size",
        type=integer(1, 2**20),
        default=16,
        metavar="WINDOWS",
        help="per step, over all ranks (default: %(default)s)",
    )
    add(
        "--micro-batch",
        type=integer(1),
        metavar="WINDOWS",
        help="on a rank at a time; gradients accumulate (default: a rank's share of --batch-size)",
    )
    add("--lr", type=number(), default=0.002, help="peak learning rate (default: %(default)s)")
    add(
        "--warmup",
        type=integer(0),
        metavar="STEPS",
        help="during which the learning rate rises to its peak (default: a tenth of all)",
    )
    add(
        "--clip", type=number(), default=1.0, metavar="NORM", help="largest norm of the gradient (default: %(default)s)"
    )
    add("--seed", type=integer(0, 2**32 - 1), default=0, help="for the weights and the order (default: %(default)s)")
    add(
        "--parallel",
        choices=("fsdp", "ddp"),
        default="fsdp",
        help="divide the model among the ranks, or copy it to each (default: %(default)s)",
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
    add("--bf16", action="store_true", help="compute in bfloat16; weights and sums stay float32")
    add("--compile", action="store_true", help="compile the blocks; requires a C++ compiler or Triton")
    add("--recompute", action="store_true", help="activation checkpointing: less memory, more time")
    add(
        "--interval",
        type=integer(1),
        metavar="STEPS",
        help="between two lines with the validation loss (default: a tenth of all)",
    )
    add("--peak-tflops", type=number(), metavar="N", help="of a device in bfloat16 (default: from a table)")
    add("--timeout", type=number(), default=300, metavar="SECONDS", help="to wait for others (default: %(default)s)")
    add_output(parser)
    add(
        "--every",
        type=parse_interval,
        default=Interval(seconds=1800),
        metavar="STEPS|TIME",
        help="write a checkpoint every 500 steps, or every 90s, 30m or 2h (default: 30m)",
    )
    options = parser.parse_args(arguments)
    check_common(options, parser)
    if options.warmup is not None and options.warmup >= options.steps:
        parser.error(f"--warmup must be below --steps, found {options.warmup}")
    if max(options.replicas, options.tensor) > 1 and options.parallel == "ddp":
        parser.error("--replicas and --tensor need --parallel fsdp: with ddp every rank has a copy")
    if options.tensor > 1 and (options.compile or options.health is not None):
        parser.error("--tensor: not with --compile or --health, as ranks wait for each other within a block")
    options.warmup = options.steps // 10 if options.warmup is None else options.warmup
    options.interval = options.interval or max(1, options.steps // 10)
    return options
