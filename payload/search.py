#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Search hyper-parameters with Optuna: each trial is a training in a directory of its own.

Run it alone (`python search.py --study DIR --trials 12 -- mnist_ddp.py --epochs 1`), or any number
of times in parallel, on any nodes: the processes share only the directory of the study. With
--one each call trains one trial, as a separate Slurm step: jobs/slurm/search.job. If the process of a
trial is killed, the next start resumes the trial from its last checkpoint. A complete study is
reported as a table and a picture.

The training script receives --modelpath TRIAL and the hyper-parameters as options, and must write
TRIAL/metrics.jsonl.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
from pathlib import Path
from typing import NamedTuple

from training import TrainingError
from training.files import remedy_for
from training.options import OneLineParser, integer, path, text
from training.signals import SIGNALS, end_at_once, end_no_more, status_of

SCRIPT = Path(__file__).with_name("mnist_ddp.py")
SPACE = ["lr=log:0.001..0.1", "batch-size=64,128,256,512,1024"]


class Parameter(NamedTuple):
    """A hyper-parameter: one of ``choices``, else from ``low`` to ``high``, on a linear or a logarithmic scale."""

    text: str
    name: str
    low: float = 0
    high: float = 0
    log: bool = False
    choices: tuple = ()


def parse_parameter(text: str) -> Parameter:
    """Read ``lr=log:0.001..0.1``, ``warmup=0..2`` or ``batch-size=64,128``.

    A range between two integers holds integers. Raises ValueError for anything else.
    """

    def number(word: str) -> float:
        value = int(word) if word.lstrip("-").isdigit() else float(word)
        if not abs(value) < (2**63 if isinstance(value, int) else 1e300):  # the limits of Optuna's arithmetic
            raise ValueError(text)
        return value

    name, _, values = text.partition("=")
    if not name or not values:
        raise ValueError(text)
    if ".." not in values:
        words = values.split(",")
        if len(set(words)) < len(words) or "" in words or any(is_endless(word) for word in words):
            raise ValueError(text)
        try:
            return Parameter(text, name, choices=tuple(map(number, words)))
        except ValueError:
            return Parameter(text, name, choices=tuple(words))
    log = values.startswith("log:")
    low, _, high = values[len("log:") * log :].partition("..")
    parameter = Parameter(text, name, number(low), number(high), log)
    if not parameter.low < parameter.high or (log and parameter.low <= 0):
        raise ValueError(text)
    return parameter


def is_endless(word: str) -> bool:
    """Return whether a word is a number, but not a finite one."""
    try:
        return not math.isfinite(float(word))
    except ValueError:
        return False


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = OneLineParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add(
        "command",
        nargs="*",
        metavar="SCRIPT OPTION",
        default=[],
        help=f"after --: the training script with its options (default: {SCRIPT.name})",
    )
    add("--study", type=path, metavar="DIR", required=True, help="directory of the study, shared by all processes")
    add("--trials", type=integer(1, 10**6), metavar="N", required=True, help="number of trials in the study")
    add("--one", action="store_true", help="train one trial, then exit")
    add(
        "--space",
        type=parse_parameter,
        metavar="NAME=VALUES",
        action="append",
        help="LOW..HIGH, log:LOW..HIGH or A,B,C (default: " + " and ".join(SPACE) + ")",
    )
    add(
        "--metric",
        type=text,
        default="accuracy",
        metavar="NAME",
        help="value in metrics.jsonl, of the last epoch (default: %(default)s)",
    )
    add("--minimize", action="store_true", help="minimize the metric (default: maximize)")
    add("--seed", type=integer(0), default=0, help="for Optuna's choices (default: %(default)s)")
    options = parser.parse_args(arguments)
    options.space = options.space or list(map(parse_parameter, SPACE))
    names = [parameter.name for parameter in options.space]
    for name in names:
        if names.count(name) > 1:
            parser.error(f"--space: {name} is given {names.count(name)} times. Give it once")
    if "modelpath" in names or any(word.partition("=")[0] == "--modelpath" for word in options.command):
        parser.error("--modelpath: each trial has a directory of its own, below --study. Omit it")
    if not options.command or options.command[0].startswith("-"):
        options.command = [str(SCRIPT), *options.command]
    if not Path(options.command[0]).is_file():
        parser.error(f"{options.command[0]}: no such script")
    return options


def main(options: argparse.Namespace) -> None:
    """Search; exit with status 1 and a line that names the fault if that fails."""
    try:
        if os.environ.get("WORLD_SIZE", "1") != "1":
            raise TrainingError(
                f"this is one of {os.environ['WORLD_SIZE']} ranks (WORLD_SIZE), but a trial runs in one process. "
                "Start it as steps of one task, or with conda-python-simple: then each task trains its own trials"
            )
        try:
            from training.search import Search
        except ImportError as error:
            raise TrainingError(f"needs Optuna 4 or newer ({error}). Run: pip install optuna") from None
        search = Search(options)
        for number in SIGNALS:
            signal.signal(number, search.stop)
        end_no_more()
        search.run()
    except TrainingError as error:
        sys.exit(f"search.py: {error}")
    except OSError as error:
        sys.exit(f"search.py: {error.filename or options.study}: {error.strerror}. {remedy_for(error, '--study')}")
    if search.stopped:
        sys.exit(status_of(search.stopped))


if __name__ == "__main__":
    end_at_once()
    main(parse_arguments(sys.argv[1:]))
