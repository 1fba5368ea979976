#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Search hyper-parameters with Optuna: each trial is a training in a directory of its own.

Run it alone (`python search.py --study DIR --trials 12 -- mnist_ddp.py --epochs 1`), or any number
of times in parallel, on any nodes: the processes share only the directory of the study. With
--one each call trains one trial, as a separate Slurm step: jobs/slurm/search.job. If the process of a
trial is killed, the next start resumes the trial from its last checkpoint.

The training script receives --modelpath TRIAL and the hyper-parameters as options, and must write
TRIAL/metrics.jsonl.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

try:
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState
except ImportError as fault:
    sys.exit(f"search.py: needs Optuna 4 or newer ({fault}). Run: pip install optuna")

from training import NOT_FINITE, TrainingError
from training.options import OneLineParser, integer, path, text
from training.signals import SIGNALS, STOPPED, status_of

KILLED_SECONDS = 5  # until this process is killed too, if it is the step that is killed and not the training alone
DIRECTORY = "directory"  # the attribute of a trial with the name of its directory


def read_value(word: str) -> Any:
    """Return a number, or the text itself."""
    try:
        return json.loads(word)
    except ValueError:
        return word


def parameter(given: str) -> tuple[str, Any]:
    """Return the name and Optuna's distribution of ``lr=log:0.001..0.1``, ``warmup=0..2`` or ``batch-size=64,128``.

    A range between two integers holds integers. Raises ValueError.
    """
    name, _, values = given.partition("=")
    if ".." not in values:
        return name, CategoricalDistribution([read_value(word) for word in values.split(",")])
    low, high = map(read_value, values.replace("log:", "").split(".."))
    kind = FloatDistribution if float in (type(low), type(high)) else IntDistribution
    return name, kind(low, high, log="log:" in values)


def lock_trial(directory: Path, flags: int = 0) -> IO:
    """Return a file that stays locked until this process, and a training that inherits the file, have ended."""
    directory.mkdir(exist_ok=True)
    file = (directory / "lock").open("a")  # for writing: flock(2), "NFS details"
    fcntl.flock(file, fcntl.LOCK_EX | flags)
    return file


def start_training(command, directory, parameters, lock) -> subprocess.Popen:
    """Start the training of a trial, which inherits ``lock``."""
    chosen = [f"--{name}={value}" for name, value in parameters.items()]  # argparse takes "-1e-9" alone for an option
    command = [sys.executable, "-u", *command, f"--modelpath={directory}", *chosen]
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, pass_fds=[lock.fileno()])


def last_value(directory: Path, metric: str) -> float | None:
    """Return the metric of the last epoch, None if it is missing or no number."""
    try:
        return float(json.loads((directory / "metrics.jsonl").read_text().splitlines()[-1])[metric])
    except Exception:  # no file, no line, no such metric, no number
        return None


class Search:
    """One process that works on an Optuna study in a directory, which other processes share. It needs Optuna.

    ``study.journal`` is Optuna's log, with Optuna's own lock; ``trial-0007/`` the output of the training that started
    as number 7. A process that trains or ends a trial holds the lock ``trial-0007/lock``: where a trial is RUNNING in
    the study and its lock is free, its process was killed.
    """

    def __init__(self, options: argparse.Namespace):
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.options = options
        self.stopped = 0  # the number of the signal
        self.child: Any = None

    def stop(self, number, _frame) -> None:
        """Handle a signal: forward it to the training, which writes a checkpoint and exits."""
        self.stopped = number
        if self.child:
            self.child.send_signal(number)

    def run(self) -> None:
        """Train trials until the study is complete, then report; with --one, train at most one trial."""
        self.options.study.mkdir(parents=True, exist_ok=True)
        self.study = self.open_study()
        for trial, lock in iter(self.next_trial, None):
            self.train(trial, lock)
            if self.options.one or self.stopped:
                return
        if not self.options.one:
            self.report()

    def open_study(self) -> Any:
        """Return the study, new or continued; TrainingError if it is damaged or was opened with other options."""
        journal = self.options.study / "study.journal"
        direction = "minimize" if self.options.minimize else "maximize"
        name = f"{' '.join(self.options.command)}, {direction} {self.options.metric}"
        try:
            storage = optuna.storages.JournalStorage(JournalFileBackend(str(journal)))
            others = {*optuna.get_all_study_names(storage)} - {name}
            if not others:
                sampler = optuna.samplers.TPESampler(constant_liar=True)  # considers the trials of other processes
                return optuna.create_study(
                    storage=storage, sampler=sampler, study_name=name, direction=direction, load_if_exists=True
                )
        except Exception as error:  # a damaged line raises one of a dozen types
            raise TrainingError(f"{journal}: damaged ({error!r}). Restore it, or use another --study") from None
        raise TrainingError(f"{journal}: of {others}, not of {name!r}. Use the same options, or another --study")

    def trials(self, *states) -> list:
        """Return the trials with one of these states."""
        return self.study.get_trials(deepcopy=False, states=states)

    def next_trial(self):
        """Return a trial to train and its lock; None if there are enough, done or in training."""
        while True:
            count = self.count_running() + len(self.trials(TrialState.COMPLETE, TrialState.PRUNED))
            if count >= self.options.trials and not self.trials(TrialState.WAITING):
                return None
            trial = self.study.ask(dict(self.options.space))
            name = trial.user_attrs.get(DIRECTORY, f"trial-{trial.number:04}")  # the one before, if it was queued again
            lock = lock_trial(self.options.study / name)
            if self.study.trials[trial.number].state == TrialState.RUNNING:
                trial.set_user_attr(DIRECTORY, name)
                return trial, lock
            lock.close()  # another process took the trial for killed before it was locked, and queued it again

    def count_running(self) -> int:
        """Return the number of trials that a process trains; a trial that was killed is queued again."""
        count = 0
        for trial in self.trials(TrialState.RUNNING):
            if DIRECTORY not in trial.user_attrs:
                continue  # its process has not locked it yet
            name = trial.user_attrs[DIRECTORY]
            try:
                with lock_trial(self.options.study / name, fcntl.LOCK_NB):
                    self.study.tell(trial.number, state=TrialState.FAIL)
                    self.study.enqueue_trial(trial.params, user_attrs=trial.user_attrs)
                    print(f"{name}: its process is gone; it will be resumed", flush=True)
            except BlockingIOError:
                count += 1
            except ValueError:  # of tell: it has ended, or another process queued it again
                pass
        return count

    def train(self, trial, lock) -> None:
        """Train ``trial`` and record its metric, or PRUNED if it diverged; TrainingError if the training failed."""
        directory = self.options.study / trial.user_attrs[DIRECTORY]
        print(f"{directory.name}: {trial.params}", flush=True)
        self.child = start_training(self.options.command, directory, trial.params, lock)
        status = self.child.wait()
        if status == -signal.SIGKILL:  # a step that is killed, whose trial runs again; or the training's memory
            time.sleep(KILLED_SECONDS)
        if status == STOPPED or (self.stopped and status != 0):  # RUNNING without a process: the next start resumes it
            print(f"{directory.name}: stopped; it will be resumed", flush=True)
            sys.exit(status_of(self.stopped))
        value = last_value(directory, self.options.metric)
        log = directory / "log"
        with lock:  # closed at the end: a trial without a process has a result
            if status == 0 and value is not None:
                self.study.tell(trial, value)
            elif NOT_FINITE in log.read_text(errors="replace")[-4096:]:  # a result: the learning rate is too large
                self.study.tell(trial, state=TrialState.PRUNED)
            else:
                self.study.tell(trial, state=TrialState.FAIL)
                raise TrainingError(f"training failed: status {status}, {self.options.metric} {value}. Read {log}")

    def report(self) -> None:
        """Print the trials, best first."""
        trials = self.trials(TrialState.COMPLETE)
        for trial in sorted(trials, key=lambda trial: trial.value, reverse=not self.options.minimize):
            print(f"{trial.user_attrs[DIRECTORY]}  {self.options.metric} {trial.value:.5g}  {trial.params}", flush=True)


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Return the options; exit with a line and status 2 if one is invalid."""
    parser = OneLineParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("command", nargs="+", metavar="SCRIPT OPTION", help="after --: the training script with its options")
    add("--study", type=path, metavar="DIR", required=True, help="directory of the study, shared by all processes")
    add("--trials", type=integer(1), metavar="N", required=True, help="number of trials in the study")
    add("--one", action="store_true", help="train one trial, then exit")
    add(
        "--space",
        type=parameter,
        metavar="NAME=VALUES",
        action="append",
        required=True,
        help="LOW..HIGH, log:LOW..HIGH or A,B,C, passed to the script as --NAME; once for each hyper-parameter",
    )
    add(
        "--metric",
        type=text,
        default="accuracy",
        metavar="NAME",
        help="value in metrics.jsonl, of the last epoch (default: %(default)s)",
    )
    add("--minimize", action="store_true", help="minimize the metric (default: maximize)")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    """Search; exit with status 1 and a line that names the fault if that fails."""
    try:
        if os.environ.get("WORLD_SIZE", "1") != "1":
            raise TrainingError("one of several ranks, but a trial runs in one process. Use conda-python-simple")
        search = Search(parse_arguments(arguments))
        for number in SIGNALS:
            signal.signal(number, search.stop)
        search.run()
    except (TrainingError, OSError, ValueError) as error:  # ValueError: of Optuna, for another space
        sys.exit(f"search.py: {error}")
    if search.stopped:
        sys.exit(status_of(search.stopped))


if __name__ == "__main__":
    main(sys.argv[1:])
