# SPDX-License-Identifier: BSD-3-Clause
"""One of the processes that work on an Optuna study: it takes trials, trains them and records their results."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import TrialState

from training import NOT_FINITE, TrainingError
from training.metrics import METRICS_FILE
from training.signals import STOPPED, status_of
from training.trials import (
    LOG,
    check_journal,
    damaged_journal,
    draw_search,
    ends_with,
    is_running,
    last_value,
    lock_trial,
    shorten,
    show_parameters,
    start_training,
    table,
)

WAIT_SECONDS = 1  # between two looks at the study
FAILED_IN_A_ROW = 3  # trainings, after which this process exits
DIVERGED = "diverged"  # an attribute of a trial whose loss, or metric, is not a finite number
DIRECTORY = "directory"  # the attribute of a trial with the name of its directory


@contextmanager
def held(lock: JournalFileOpenLock) -> Iterator[None]:
    """Hold a lock of Optuna. It works on NFS, Lustre and GPFS: it creates a file (O_EXCL)."""
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


class Search:
    """One process that works on an Optuna study in a directory, which other processes share.

    ``study.journal`` is Optuna's log, ``trial-0007/`` the output of the training that started as number 7.
    The process of a trial that is RUNNING in the study holds the lock ``trial-0007/lock``, else it was killed.
    """

    def __init__(self, options: argparse.Namespace):
        self.options, self.directory = options, options.study
        self.stopped = 0  # the number of the signal
        self.child = self.trial_lock = self.study = None
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
        while trial := self.next_trial():
            failures = 0 if self.train(trial) else failures + 1  # a trial that diverged is a result
            if failures == (1 if self.options.one else FAILED_IN_A_ROW):
                raise TrainingError(f"the training failed. Read {self.trial_directory(trial) / LOG}")
            if self.options.one:
                return
        if not self.stopped and not self.options.one:
            self.report()

    def open_study(self) -> optuna.Study:
        """Return the study, new or continued; TrainingError if it was opened with other options."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        journal = self.directory / "study.journal"
        lock = JournalFileOpenLock(str(journal))
        with held(lock):
            check_journal(journal)
        try:
            study = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(journal), lock_obj=lock)),
                study_name="search",
                direction="minimize" if self.options.minimize else "maximize",
                load_if_exists=True,
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, AssertionError) as error:
            raise damaged_journal(journal, f"{type(error).__name__}: {error}") from None
        script, *arguments = self.options.command
        question = {
            "the script and options": " ".join([Path(script).name, *arguments]),
            "the space": " ".join(parameter.text for parameter in self.options.space),
            "the metric": ("least " if self.options.minimize else "most ") + self.options.metric,
        }
        asked = study.user_attrs.get("question", question)
        for name, now in question.items():
            if now != asked[name]:
                raise TrainingError(
                    f"{self.directory} holds a study with {name} '{asked[name]}', not '{now}'. "
                    "Choose another directory with --study, or use the same options"
                )
        study.set_user_attr("question", question)
        return study

    def next_trial(self) -> optuna.Trial | None:
        """Return a trial to train, None if the study is complete; wait while others train the last trials.

        A process must wait, because one that trains a last trial may be killed.
        """
        while not self.stopped:
            with held(self.lock):
                for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                    name = trial.user_attrs.get(DIRECTORY)  # None: killed while its process held the study's lock
                    if not name or not is_running(self.directory / name):
                        print(f"{name or 'a trial'}: its process is gone; it will be resumed", flush=True)
                        self.study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
                        if DIVERGED not in trial.user_attrs:
                            self.study.enqueue_trial(trial.params, user_attrs=trial.user_attrs)  # in the same directory
                trials = self.study.get_trials(deepcopy=False)
                states = Counter(trial.state for trial in trials)
                done = states[TrialState.COMPLETE] + sum(DIVERGED in trial.user_attrs for trial in trials)
                if done >= self.options.trials:
                    return None
                begun = done + states[TrialState.RUNNING]
                if states[TrialState.WAITING] or begun < self.options.trials:
                    return self.ask(len(trials))
            time.sleep(WAIT_SECONDS)
        return None

    def ask(self, count: int) -> optuna.Trial:
        """Return a new trial after ``count`` others, or one that was given back, with its lock."""
        # Each trial has a separate seed: with the same seed, all processes would ask for the same values.
        self.study.sampler = optuna.samplers.TPESampler(
            seed=self.options.seed + count,
            n_startup_trials=min(10, max(4, self.options.trials // 3)),
            constant_liar=True,  # consider the trials that other processes are training
        )
        # Returns trials that were given back first.
        trial = self.study.ask({parameter.name: distribution(parameter) for parameter in self.options.space})
        if DIRECTORY not in trial.user_attrs:
            trial.set_user_attr(DIRECTORY, f"trial-{trial.number:04}")
        self.trial_directory(trial).mkdir(exist_ok=True)
        self.trial_lock = lock_trial(self.trial_directory(trial))
        return trial

    def trial_directory(self, trial) -> Path:
        return self.directory / trial.user_attrs[DIRECTORY]

    def train(self, trial: optuna.Trial) -> bool:
        """Train ``trial`` and record its result in the study; return whether it has one, or diverged."""
        directory = self.trial_directory(trial)
        print(f"{directory.name}: {show_parameters(trial.params)}", flush=True)
        self.child = start_training(self.options.command, directory, trial.params, self.trial_lock)
        if self.stopped:  # the signal came before there was a child
            self.child.terminate()
        status = self.child.wait()
        if status == STOPPED or (self.stopped and status != 0):  # RUNNING without a process: the next start resumes it
            print(f"{directory.name}: stopped; it will be resumed", flush=True)
            sys.exit(status_of(self.stopped))
        value, result = None, f"failed (status {status})"
        diverged = status != 0 and ends_with(directory / LOG, NOT_FINITE)
        if diverged:
            result = "failed: it diverged"
        if status == 0:
            try:
                value = last_value(directory / METRICS_FILE, self.options.metric)
                result = f"{self.options.metric} {shorten(value)}"
            except (TrainingError, OSError) as error:
                result, diverged = f"failed ({error})", NOT_FINITE in str(error)
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        if diverged:
            trial.set_user_attr(DIVERGED, True)
        with held(self.lock), self.trial_lock:  # closed at the end: a trial without a process has a result
            self.study.tell(trial, value, state=state, skip_if_finished=True)
        print(f"{directory.name}: {result}", flush=True)
        return value is not None or diverged

    def report(self) -> None:
        """Print the trials, best first, and draw them."""
        trials = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if not trials:
            raise TrainingError(f"all {self.options.trials} trials diverged. Use another --space, and another --study")
        trials.sort(key=lambda trial: trial.value, reverse=not self.options.minimize)
        names = [parameter.name for parameter in self.options.space]
        rows = [["", self.options.metric, *names, DIRECTORY]]
        for number, trial in enumerate(trials, start=1):
            values = [number, trial.value, *map(trial.params.get, names), trial.user_attrs[DIRECTORY]]
            rows.append(list(map(shorten, values)))
        print(table(rows), flush=True)
        picture = self.directory / "search.png"
        if draw_search(trials, self.options, picture):
            print(f"picture written to {picture}", flush=True)


def distribution(parameter) -> optuna.distributions.BaseDistribution:
    """Return a parameter as Optuna expresses it."""
    if parameter.choices:
        return CategoricalDistribution(parameter.choices)
    low, high = parameter.low, parameter.high
    is_integer = isinstance(low, int) and isinstance(high, int)
    return (IntDistribution if is_integer else FloatDistribution)(low, high, log=parameter.log)
