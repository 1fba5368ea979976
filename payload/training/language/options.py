# SPDX-License-Identifier: BSD-3-Clause
"""The command line of lm_fsdp.py. It does not import torch, so --help answers at once."""

from __future__ import annotations

import argparse
from pathlib import Path

from training.options import OneLineParser, add_health, add_output, check_common
from training.sharded.interval import Interval, parse_interval

SIZES = ("100K", "1M", "10M", "124M", "350M", "1B")


def parse_arguments(arguments: list[str], description: str = "") -> argparse.Namespace:
    """Return the options of lm_fsdp.py; exit with a line and status 2 if one is invalid."""
    parser = OneLineParser(description=description)
    add = parser.add_argument
    add("--gpu", action="store_true", help="one GPU per rank, with NCCL or XCCL (default: CPU, with gloo)")
    add("--size", choices=SIZES, default="1M", help="parameters of the model, about (default: %(default)s)")
    add("--context", type=int, default=128, metavar="BYTES", help="length of a window (default: %(default)s)")
    add(
        "--data",
        type=Path,
        metavar="PATH",
        help="the text: a file, or a directory (default: the source of Python's standard library)",
    )
    add("--steps", type=int, default=100, help="(default: %(default)s)")
    add("--batch-size", type=int, default=16, metavar="WINDOWS", help="per step, over all ranks (default: %(default)s)")
    add(
        "--micro-batch",
        type=int,
        metavar="WINDOWS",
        help="on a rank at a time; gradients accumulate (default: a rank's share of --batch-size)",
    )
    add("--lr", type=float, default=0.002, help="peak learning rate (default: %(default)s)")
    add(
        "--warmup",
        type=int,
        metavar="STEPS",
        help="during which the learning rate rises to its peak (default: a tenth of all)",
    )
    add("--clip", type=float, default=1.0, metavar="NORM", help="largest norm of the gradient (default: %(default)s)")
    add("--seed", type=int, default=0, help="for the weights and the order (default: %(default)s)")
    add(
        "--parallel",
        choices=("fsdp", "ddp"),
        default="fsdp",
        help="divide the model among the ranks, or copy it to each (default: %(default)s)",
    )
    add(
        "--replicas",
        type=int,
        default=1,
        metavar="N",
        help="copies of the model, each divided among consecutive ranks (default: %(default)s)",
    )
    add("--bf16", action="store_true", help="compute in bfloat16; weights and sums stay float32")
    add("--compile", action="store_true", help="compile the blocks; requires a C++ compiler or Triton")
    add("--recompute", action="store_true", help="activation checkpointing: less memory, more time")
    add(
        "--interval",
        type=int,
        metavar="STEPS",
        help="between two lines with the validation loss (default: a tenth of all)",
    )
    add("--peak-tflops", type=float, metavar="N", help="of a device in bfloat16 (default: from a table)")
    add("--timeout", type=float, default=300, metavar="SECONDS", help="to wait for other ranks (default: %(default)s)")
    add_health(parser)
    add_output(parser)
    add(
        "--every",
        type=parse_interval,
        default=Interval(seconds=1800),
        metavar="STEPS|TIME",
        help="write a checkpoint every 500 steps, or every 90s, 30m or 2h (default: 30m)",
    )
    options = parser.parse_args(arguments)
    check(options, parser)
    options.warmup = options.steps // 10 if options.warmup is None else options.warmup
    options.interval = options.interval or max(1, options.steps // 10)
    return options


def check(options: argparse.Namespace, parser: OneLineParser) -> None:
    """Exit with a line and status 2 if an option has an invalid value."""
    positive = ("context", "steps", "micro_batch", "clip", "replicas", "interval", "peak_tflops")
    given = check_common(options, parser, positive)
    if "warmup" in given and not 0 <= options.warmup < options.steps:
        parser.error(f"--warmup must be from 0 to below --steps, found {options.warmup}")
    if options.replicas > 1 and options.parallel == "ddp":
        parser.error("--replicas needs --parallel fsdp: with ddp every rank has a copy")
