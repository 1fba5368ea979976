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
import fcntl
import os
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from training import NOT_FINITE, TrainingError
from training.files import read_file, remedy_for
from training.metrics import METRICS_FILE, finite_number, read_objects
from training.options import OneLineParser, integer, path, text
from training.pictures import write_picture
from training.signals import SIGNALS, STOPPED, end_at_once, end_no_more, status_of

SCRIPT = Path(__file__).with_name("mnist_ddp.py")
SPACE = ["lr=log:0.001..0.1", "batch-size=64,128,256,512,1024"]
KILLED_SECONDS = 5  # until this process is killed too, if it is the step that is killed and not the training alone
FAILED_IN_A_ROW = 3  # trainings, after which this process exits
DIRECTORY = "directory"  # the attribute of a trial with the name of its directory
LOG = "log"  # a file in the directory of a trial


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


def remove_incomplete_line(journal: Path) -> None:
    """Remove what a full disk left of a last line: Optuna would write the next entry behind it. Hold Optuna's lock."""
    content = read_file(journal, follow_links=False) if os.path.lexists(journal) else b""
    rest = len(content) - content.rfind(b"\n") - 1
    if rest:
        print(f"{journal}: removed an incomplete last line", flush=True)
        os.truncate(journal, len(content) - rest)


def open_file(path: Path) -> IO:
    """Open a file to append to it; a FIFO cannot block the call, and a link is not followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW
    return open(os.open(path, flags, 0o666), "ab")  # noqa: PTH123 (a descriptor)


def lock_trial(directory: Path, flags: int = 0) -> IO:
    """Return a file that stays locked until this process, and a training that inherits the file, have ended."""
    file = open_file(directory / "lock")  # for writing: flock(2), "NFS details"
    fcntl.flock(file, fcntl.LOCK_EX | flags)
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
    chosen = [f"--{name}={value}" for name, value in parameters.items()]  # argparse takes "-1e-9" alone for an option
    command = [sys.executable, "-u", *command, "--modelpath", str(directory), *chosen]
    with open_file(directory / LOG) as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, pass_fds=[lock.fileno()])


def last_value(metrics_file: Path, metric: str) -> float:
    """Return the metric of the last epoch; TrainingError if it is missing or not a finite number."""
    epochs = [values for values in read_objects(metrics_file) if values is not None]
    if not epochs or metric not in epochs[-1]:
        raise TrainingError(f"no {metric} in {METRICS_FILE}")
    value = finite_number(epochs[-1][metric])
    if value is None:
        raise TrainingError(f"{metric} in {METRICS_FILE} {NOT_FINITE}: {repr(epochs[-1][metric])[:40]}")
    return value


def shorten(value: object) -> str:
    return f"{value:#.4g}" if isinstance(value, float) else str(value)


def table(rows: list[list]) -> str:
    """Return rows of values as lines with aligned columns."""
    texts = [list(map(shorten, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts)]
    return "\n".join("  ".join(map(str.rjust, row, widths)) for row in texts)


@contextmanager
def held(lock: Any) -> Iterator[None]:
    """Hold a lock of Optuna. It works on NFS, Lustre and GPFS: it creates a file (O_EXCL)."""
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


class Search:
    """One process that works on an Optuna study in a directory, which other processes share. It needs Optuna.

    ``study.journal`` is Optuna's log, ``trial-0007/`` the output of the training that started as number 7.
    The process of a trial that is RUNNING in the study holds the lock ``trial-0007/lock``, else it was killed.
    """

    study: Any
    trial_lock: IO
    is_complete = False

    def __init__(self, options: argparse.Namespace):
        import optuna
        from optuna.storages.journal import JournalFileOpenLock
        from optuna.trial import TrialState

        self.optuna, self.open_lock, self.states = optuna, JournalFileOpenLock, TrialState
        self.options, self.directory = options, options.study
        self.stopped = 0  # the number of the signal
        self.child: subprocess.Popen | None = None
        self.lock = JournalFileOpenLock(str(self.directory / "claim"))  # held while a process decides

    def stop(self, number: int, _frame) -> None:
        """Handle a signal: forward it to the training, which writes a checkpoint and exits."""
        self.stopped = number
        if self.child and self.child.poll() is None:
            self.child.send_signal(number)

    def run(self) -> None:
        """Train trials until the study is complete, then report; with --one, train at most one trial."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with held(self.lock):
            self.study = self.open_study()
        failures = 0
        while not self.stopped and (trial := self.next_trial()):
            failures = 0 if self.train(trial) else failures + 1  # a trial that diverged is a result
            if failures == (1 if self.options.one else FAILED_IN_A_ROW):
                raise TrainingError(f"the training failed. Read {self.trial_directory(trial) / LOG}")
            if self.options.one:
                return
        if self.stopped or self.options.one:
            return
        if self.is_complete:
            self.report()
        else:
            print("Other processes train the last trials. Start again if none of them prints the table", flush=True)

    def open_study(self) -> Any:
        """Return the study, new or continued; TrainingError if it was opened with other options."""
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        self.optuna.logging.set_verbosity(self.optuna.logging.WARNING)
        journal, options = self.directory / "study.journal", self.options
        lock = self.open_lock(str(journal))
        with held(lock):
            remove_incomplete_line(journal)
        try:
            study = self.optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(journal), lock_obj=lock)),
                study_name="search",
                direction="minimize" if options.minimize else "maximize",
                load_if_exists=True,
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, AssertionError, RecursionError) as error:
            raise TrainingError(
                f"{journal}: damaged ({type(error).__name__}: {error}). Restore the file, or choose another directory "
                "with --study"
            ) from None
        question = {
            "the script and options": " ".join([Path(options.command[0]).name, *options.command[1:]]),
            "the space": " ".join(parameter.text for parameter in options.space),
            "the metric": ("least " if options.minimize else "most ") + options.metric,
        }
        asked = study.user_attrs.get("question", question)
        if asked != question:
            found, now = (", ".join(map(str, each.values())) for each in (asked, question))
            raise TrainingError(
                f"{self.directory} holds a study of '{found}', not of '{now}'. Choose another directory with --study, "
                "or use the same options"
            )
        study.set_user_attr("question", question)
        return study

    def next_trial(self) -> Any:
        """Return a trial to train; None if the study is complete, or if other processes train what is left."""
        states = self.states
        with held(self.lock):
            for trial in self.study.get_trials(deepcopy=False, states=(states.RUNNING,)):
                name = trial.user_attrs.get(DIRECTORY)  # None: killed while its process held the study's lock
                if not name or not is_running(self.directory / name):
                    print(f"{name or 'a trial'}: its process is gone; it will be resumed", flush=True)
                    self.study.tell(trial.number, state=states.FAIL, skip_if_finished=True)
                    self.study.enqueue_trial(trial.params, user_attrs=trial.user_attrs)  # in the same directory
            trials = self.study.get_trials(deepcopy=False)
            count = Counter(trial.state for trial in trials)
            done = count[states.COMPLETE] + count[states.PRUNED]
            self.is_complete = done >= self.options.trials
            is_free = count[states.WAITING] > 0 or done + count[states.RUNNING] < self.options.trials
            return self.ask(len(trials)) if is_free and not self.is_complete else None

    def ask(self, count: int) -> Any:
        """Return a new trial after ``count`` others, or one that was given back, with its lock."""
        # Each trial has a separate seed: with the same seed, all processes would ask for the same values.
        self.study.sampler = self.optuna.samplers.TPESampler(
            seed=self.options.seed + count,
            n_startup_trials=min(10, max(4, self.options.trials // 3)),
            constant_liar=True,  # consider the trials that other processes are training
        )
        # Returns trials that were given back first.
        trial = self.study.ask({parameter.name: self.distribution(parameter) for parameter in self.options.space})
        if DIRECTORY not in trial.user_attrs:
            trial.set_user_attr(DIRECTORY, f"trial-{trial.number:04}")
        self.trial_directory(trial).mkdir(exist_ok=True)
        self.trial_lock = lock_trial(self.trial_directory(trial))
        return trial

    def distribution(self, parameter) -> Any:
        """Return a parameter as Optuna expresses it."""
        kinds = self.optuna.distributions
        if parameter.choices:
            return kinds.CategoricalDistribution(parameter.choices)
        is_integer = isinstance(parameter.low, int) and isinstance(parameter.high, int)
        kind = kinds.IntDistribution if is_integer else kinds.FloatDistribution
        return kind(parameter.low, parameter.high, log=parameter.log)

    def trial_directory(self, trial) -> Path:
        return self.directory / trial.user_attrs[DIRECTORY]

    def train(self, trial) -> bool:
        """Train ``trial`` and record its result; return whether it has one: a metric, or PRUNED, as it diverged."""
        directory = self.trial_directory(trial)
        chosen = ", ".join(f"{name} {shorten(value)}" for name, value in trial.params.items())
        print(f"{directory.name}: {chosen}", flush=True)
        self.child = start_training(self.options.command, directory, trial.params, self.trial_lock)
        if self.stopped:  # the signal came before there was a child
            self.child.terminate()
        status = self.child.wait()
        if status == -signal.SIGKILL:  # a step that is killed, whose trial runs again; or the training's memory
            time.sleep(KILLED_SECONDS)
        if status == STOPPED or (self.stopped and status != 0):  # RUNNING without a process: the next start resumes it
            print(f"{directory.name}: stopped; it will be resumed", flush=True)
            sys.exit(status_of(self.stopped))
        value, fault = None, f"status {status}"
        if status == 0:
            try:
                value = last_value(directory / METRICS_FILE, self.options.metric)
            except (TrainingError, OSError) as error:
                fault = str(error)
        elif NOT_FINITE.encode() in read_file(directory / LOG)[-4096:]:
            fault = f"its loss {NOT_FINITE}"
        state = self.states.PRUNED if NOT_FINITE in fault else self.states.FAIL
        result = f"failed ({fault})"
        if value is not None:
            state, result = self.states.COMPLETE, f"{self.options.metric} {shorten(value)}"
        with held(self.lock), self.trial_lock:  # closed at the end: a trial without a process has a result
            self.study.tell(trial, value, state=state, skip_if_finished=True)
        print(f"{directory.name}: {result}", flush=True)
        return state != self.states.FAIL

    def report(self) -> None:
        """Print the trials, best first, and draw them."""
        trials = self.study.get_trials(deepcopy=False, states=(self.states.COMPLETE,))
        if not trials:
            raise TrainingError(f"all {self.options.trials} trials diverged. Use another --space, and another --study")
        trials.sort(key=lambda trial: trial.value, reverse=not self.options.minimize)
        names = [parameter.name for parameter in self.options.space]
        rows = [
            [number, trial.value, *map(trial.params.get, names), trial.user_attrs[DIRECTORY]]
            for number, trial in enumerate(trials, start=1)
        ]
        print(table([["", self.options.metric, *names, DIRECTORY], *rows]), flush=True)
        picture = self.directory / "search.png"
        if write_picture(picture, self.draw, width=4 * len(names)):
            print(f"picture written to {picture}", flush=True)

    def draw(self, _figure) -> Any:
        """Return Optuna's picture of the metric over each hyper-parameter."""
        from optuna.visualization.matplotlib import plot_slice

        warnings.simplefilter("ignore", self.optuna.exceptions.ExperimentalWarning)
        names = [parameter.name for parameter in self.options.space]
        axes = plot_slice(self.study, names, target_name=self.options.metric)
        figure = (axes if len(names) == 1 else axes[0]).figure
        figure.set_size_inches(4 * len(names), 3.6)
        return figure


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
