#!/usr/bin/env python3
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

from training import TrainingError
from training.options import OneLineParser
from training.search.space import parse_parameter
from training.signals import SIGNALS, end_at_once, end_no_more, status_of

SCRIPT = Path(__file__).with_name("mnist_ddp.py")
SPACE = ["lr=log:0.001..0.1", "batch-size=64,128,256,512,1024"]


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = OneLineParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("command", nargs="*", metavar="SCRIPT OPTION", default=[],
        help=f"after --: the training script with its options (default: {SCRIPT.name})")  # fmt: skip
    add("--study", type=Path, metavar="DIR", required=True, help="directory of the study, shared by all processes")
    add("--trials", type=int, metavar="N", required=True, help="number of trials in the study")
    add("--one", action="store_true", help="train one trial, then exit")
    add("--space", type=parse_parameter, metavar="NAME=VALUES", action="append",
        help="LOW..HIGH, log:LOW..HIGH or A,B,C (default: " + " and ".join(SPACE) + ")")  # fmt: skip
    add("--metric", default="accuracy", metavar="NAME",
        help="value in metrics.jsonl, of the last epoch (default: %(default)s)")  # fmt: skip
    add("--minimize", action="store_true", help="minimize the metric (default: maximize)")
    add("--seed", type=int, default=0, help="for Optuna's choices (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.trials < 1:
        parser.error(f"--trials must be above 0, found {options.trials}")
    options.space = options.space or list(map(parse_parameter, SPACE))
    if not options.command or options.command[0].startswith("-"):
        options.command = [str(SCRIPT), *options.command]
    if not Path(options.command[0]).is_file():
        parser.error(f"{options.command[0]}: no such script")
    return options


def stop_at_start(number: int, _frame) -> None:
    """Handle a signal before the first trial: exit with its status and run all ``finally`` blocks."""
    print(f"search.py: {signal.Signals(number).name}: stopped, nothing was started", file=sys.stderr, flush=True)
    sys.exit(status_of(number))


def main(options: argparse.Namespace) -> None:
    """Search; exit with status 1 and a line that names the fault if that fails."""
    try:
        if int(os.environ.get("WORLD_SIZE", "1")) != 1:
            raise TrainingError(
                f"this is one of {os.environ['WORLD_SIZE']} ranks (WORLD_SIZE), but a trial runs in one process. "
                "Start it as steps of one task, or with conda-python-simple: then each task trains its own trials"
            )
        try:
            from training.search.study import Search
        except ImportError as error:
            raise TrainingError(f"needs Optuna 4 or newer ({error}). Run: pip install optuna") from None
        for number in (signal.SIGINT, signal.SIGUSR1):  # so that the lock of the study is released
            signal.signal(number, stop_at_start)
        end_no_more()
        search = Search(options)
        for number in SIGNALS:
            signal.signal(number, search.stop)
        search.run()
    except TrainingError as error:
        sys.exit(f"search.py: {error}")
    except OSError as error:
        sys.exit(
            f"search.py: {error.filename or options.study}: {error.strerror}. Free some space or choose "
            "another directory with --study, then start again: completed trials are kept"
        )
    if search.stopped:
        sys.exit(status_of(search.stopped))


if __name__ == "__main__":
    end_at_once()
    main(parse_arguments(sys.argv[1:]))
