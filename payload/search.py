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
import os
import signal
import sys
from pathlib import Path
from typing import NamedTuple

from training import TrainingError
from training.files import remedy_for
from training.options import OneLineParser, integer, path, text
from training.search import Search
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
    """Read ``lr=log:0.001..0.1``, ``warmup=0..2`` or ``batch-size=64,128``, for argparse.

    A range between two integers holds integers.
    """
    fault = argparse.ArgumentTypeError(f"expected NAME=LOW..HIGH, log:LOW..HIGH or A,B,C, found {text!r}")

    def number(word: str) -> float | None:
        try:
            value = int(word) if word.lstrip("-").isdigit() else float(word)
        except ValueError:
            return None
        if not abs(value) < (2**63 if isinstance(value, int) else 1e300):  # the limits of Optuna's arithmetic
            raise fault
        return value

    name, _, values = text.partition("=")
    if ".." in values:
        log = values.startswith("log:")
        low, high = map(number, values[len("log:") * log :].split("..", 1))
        if name and low is not None and high is not None and (0 if log else low) <= low < high and (low or not log):
            return Parameter(text, name, low, high, log)
    elif name and values:
        words = values.split(",")
        numbers = list(map(number, words))
        choices = tuple(words if None in numbers else numbers)
        if len(set(choices)) == len(choices) and "" not in words:
            return Parameter(text, name, choices=choices)
    raise fault


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = OneLineParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    script = f"after --: the training script with its options (default: {SCRIPT.name})"
    add("command", nargs="*", metavar="SCRIPT OPTION", default=[], help=script)
    add("--study", type=path, metavar="DIR", required=True, help="directory of the study, shared by all processes")
    add("--trials", type=integer(1, 10**6), metavar="N", required=True, help="number of trials in the study")
    add("--one", action="store_true", help="train one trial, then exit")
    space = f"LOW..HIGH, log:LOW..HIGH or A,B,C (default: {' and '.join(SPACE)})"
    add("--space", type=parse_parameter, metavar="NAME=VALUES", action="append", help=space)
    metric = "value in metrics.jsonl, of the last epoch (default: %(default)s)"
    add("--metric", type=text, default="accuracy", metavar="NAME", help=metric)
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
            search = Search(options)
        except ImportError as error:
            raise TrainingError(f"needs Optuna 4 or newer ({error}). Run: pip install optuna") from None
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
