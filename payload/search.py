#!/usr/bin/env python3
#!/usr/bin/env python3
"""Search hyper-parameters with Optuna: each trial is a training in a directory of its own.

Run it alone (`python search.py --study DIR --trials 12 -- mnist_ddp.py --epochs 1`), or any number
of times at once, on any nodes: the processes share the study's directory and nothing else. With
--one each call is one trial, for a Slurm step of its own: jobs/slurm/search.job. A trial whose
process was killed is taken over by another process or by the next start, and goes on from its last
checkpoint. At the end stand a table and a picture.

The training script is given --modelpath TRIAL and the hyper-parameters as options, and is expected
to write TRIAL/metrics.jsonl.
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
from training.signals import end_at_once, end_no_more, status_of

if __name__ == "__main__":
    end_at_once()

from training.search.study import NO_OPTUNA, Search

SCRIPT = Path(__file__).with_name("mnist_ddp.py")
SPACE = ["lr=log:0.001..0.1", "batch-size=64,128,256,512,1024"]


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = OneLineParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("command", nargs="*", metavar="SCRIPT OPTION", default=[],
        help=f"after --: the training script with its options (default: {SCRIPT.name})")  # fmt: skip
    add("--study", type=Path, metavar="DIR", required=True, help="directory that all share")
    add("--trials", type=int, metavar="N", required=True, help="that the study is to have in all")
    add("--one", action="store_true", help="train one trial, then end")
    add("--space", type=parse_parameter, metavar="NAME=VALUES", action="append",
        help="LOW..HIGH, log:LOW..HIGH or A,B,C (default: " + " and ".join(SPACE) + ")")  # fmt: skip
    add("--metric", default="accuracy", metavar="NAME",
        help="in metrics.jsonl, that of the last epoch (default: %(default)s)")  # fmt: skip
    add("--minimize", action="store_true", help="the metric (default: maximize)")
    add("--seed", type=int, default=0, help="of Optuna's choices (default: %(default)s)")
    add("--takeover", type=float, default=120, metavar="SECONDS",
        help="without a sign of life before a trial is taken over (default: %(default)s)")  # fmt: skip
    options = parser.parse_args(arguments)
    if options.trials < 1:
        parser.error(f"--trials must be above 0, found {options.trials}")
    if not options.takeover > 0:
        parser.error(f"--takeover must be above 0, found {options.takeover}")
    options.space = options.space or list(map(parse_parameter, SPACE))
    if not options.command or options.command[0].startswith("-"):
        options.command = [str(SCRIPT), *options.command]
    if not Path(options.command[0]).is_file():
        parser.error(f"there is no script {options.command[0]}")
    return options


def stop_at_start(number: int, _frame) -> None:
    """Handle a signal before there are trials: end with its status, by way of all ``finally``."""
    print(f"search.py: {signal.Signals(number).name}: stopped, nothing was begun", file=sys.stderr, flush=True)
    sys.exit(status_of(number))


def main(options: argparse.Namespace) -> None:
    """Search, or end with status 1 and a line that says why not."""
    try:
        if int(os.environ.get("WORLD_SIZE", "1")) != 1:
            raise TrainingError(
                "a trial is one process, and this is one rank of several (WORLD_SIZE is "
                f"{os.environ['WORLD_SIZE']}); start it as steps of one task, or with "
                "conda-python-simple, where each task trains trials of its own"
            )
        if NO_OPTUNA:
            raise TrainingError(f"needs Optuna 4 or newer ({NO_OPTUNA}): pip install optuna")
        for number in (signal.SIGINT, signal.SIGUSR1):  # the study's lock is given back on the way out
            signal.signal(number, stop_at_start)
        end_no_more()
        search = Search(options)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, search.stop)
        search.run()
    except TrainingError as error:
        sys.exit(f"search.py: {error}")
    except OSError as error:
        sys.exit(
            f"search.py: {error.filename or options.study}: {error.strerror}; free some space or name "
            "another directory with --study, then start again: what was done is kept"
        )
    if search.stopped:
        sys.exit(status_of(search.stopped))


if __name__ == "__main__":
    main(parse_arguments(sys.argv[1:]))
