# SPDX-License-Identifier: BSD-3-Clause
"""The files of a study and the trainings of its trials; search.py and training/search.py call it."""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import IO

from training import NOT_FINITE, TrainingError
from training.files import read_file
from training.metrics import METRICS_FILE, finite_number, read_objects
from training.pictures import BLUE, GREY, ORANGE, write_picture
from training.signals import STOPPED

LOG = "log"  # a file in the directory of a trial
PRCTL = ctypes.CDLL(None).prctl
PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def check_journal(journal: Path) -> None:
    """Remove an incomplete last line, which a full disk leaves: Optuna would write the next entry behind it.

    Raises TrainingError if another line is damaged: the numbers of all later trials depend on it. Hold Optuna's lock.
    """
    content = read_file(journal) if journal.exists() else b""
    *lines, rest = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            json.loads(line)["op_code"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise damaged_journal(journal, f"line {number}") from None
    if rest:
        print(f"{journal}: removed an incomplete last line", flush=True)
        os.truncate(journal, len(content) - len(rest))


def damaged_journal(journal: Path, where: str) -> TrainingError:
    return TrainingError(
        f"{journal}: damaged ({where}). Nothing was changed: restore the file, or choose another directory with --study"
    )


def lock_trial(directory: Path, flags: int = 0) -> IO:
    """Return a file that stays locked until this process, and a training that inherits the file, have ended."""
    file = (directory / "lock").open("a")  # for writing: flock(2), "NFS details"
    try:
        fcntl.flock(file, fcntl.LOCK_EX | flags)
    except OSError:
        file.close()
        raise
    return file


def is_running(directory: Path) -> bool:
    """Return whether a process holds the lock of a trial."""
    try:
        lock_trial(directory, fcntl.LOCK_NB).close()
    except (BlockingIOError, FileNotFoundError) as error:
        return isinstance(error, BlockingIOError)
    return False


def start_training(command: list[str], directory: Path, parameters: dict, lock: IO) -> subprocess.Popen:
    """Start the training of a trial, which inherits ``lock``."""
    chosen = [word for name, value in parameters.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-u", *command, "--modelpath", str(directory), *chosen]
    stop = partial(stop_with_parent, os.getpid())
    with (directory / LOG).open("ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, pass_fds=[lock.fileno()], preexec_fn=stop
        )


def stop_with_parent(parent: int) -> None:
    """Stop this process when its parent is killed, which alone records its result."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    PRCTL(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # killed before the call
        os._exit(STOPPED)


def last_value(metrics_file: Path, metric: str) -> float:
    """Return the metric of the last epoch; TrainingError if it is missing or not a finite number."""
    epochs = read_objects(metrics_file)
    if not epochs or metric not in epochs[-1]:
        raise TrainingError(f"no {metric} in {METRICS_FILE}")
    value = finite_number(epochs[-1][metric])
    if value is None:
        raise TrainingError(f"{metric} in {METRICS_FILE} {NOT_FINITE}: {repr(epochs[-1][metric])[:40]}")
    return value


def ends_with(log: Path, words: str) -> bool:
    """Return whether the end of a log has ``words``."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        return words in file.read().decode(errors="replace")


def shorten(value: object) -> str:
    return f"{value:#.4g}" if isinstance(value, float) else str(value)


def show_parameters(parameters: dict) -> str:
    return ", ".join(f"{name} {shorten(value)}" for name, value in parameters.items())


def table(rows: list[list[str]]) -> str:
    """Return rows of text as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(map(str.rjust, row, widths)) for row in rows)


def draw_search(trials: list, options: argparse.Namespace, picture: Path) -> bool:
    """Draw the metric over the trials, which come best first, and over each hyper-parameter."""
    best, values = trials[0], [trial.value for trial in trials]

    def draw(figure) -> None:
        title = f"Best of {len(trials)} trials: {options.metric} {shorten(best.value)}"
        figure.suptitle(f"{title} with {show_parameters(best.params)}", x=0.01, ha="left", weight="bold")
        panels = figure.subplots(1, 1 + len(options.space), sharey=True)
        panels[0].set(xlabel="trial", ylabel=options.metric)
        panels[0].xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        places = [[trial.number for trial in trials]]
        numbers, in_turn = zip(*sorted(zip(places[0], values)))
        best_so_far = list(accumulate(in_turn, min if options.minimize else max))
        panels[0].step(numbers, best_so_far, where="post", color=GREY, label="best so far")
        for panel, parameter in zip(panels[1:], options.space):
            panel.set(xlabel=parameter.name, xscale="log" if parameter.log else "linear")
            places.append([trial.params[parameter.name] for trial in trials])
            if parameter.choices:
                panel.set_xticks(range(len(parameter.choices)), map(str, parameter.choices))
                places[-1] = [parameter.choices.index(value) for value in places[-1]]
        for panel, xs in zip(panels, places):
            panel.plot(xs, values, "o", color=BLUE, alpha=0.7, markersize=6, label="trial")
            panel.plot(xs[0], values[0], "*", color=ORANGE, markersize=14, label="best trial")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False)

    return write_picture(picture, draw, width=4 * (1 + len(options.space)))
