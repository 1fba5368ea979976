"""One process that works on a study: it takes trials, trains them and reports them."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from training import TrainingError
from training.metrics import METRICS_FILE
from training.search.journal import damaged_journal, mend_journal
from training.search.picture import draw_search, shorten, table
from training.search.space import Parameter
from training.search.trial import PRCTL, last_touched, last_value, stop_with_parent, trial_command
from training.signals import STOPPED, status_of

try:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
    from optuna.trial import TrialState
except ImportError as error:
    NO_OPTUNA = str(error)
else:
    NO_OPTUNA = None
WAIT_SECONDS = 1  # between two looks at the study
FAILED_IN_A_ROW = 3  # trainings, after which this process gives up


class Search:
    """A study of Optuna in a directory, as one of the processes that work on it.

    ``study.journal`` is Optuna's log of all that happened, ``trial-0007/`` the output of the
    training that began as number 7. A trial is RUNNING in the study while a process works on it,
    which touches ``trial-0007/alive``.
    """

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.directory = options.study
        self.child = None
        self.stopped = 0  # the number of the signal
        self.silent = {}  # by directory: when "alive" was touched last, and since when this process has seen no change
        self.directory.mkdir(parents=True, exist_ok=True)
        # Locks by O_EXCL hold on NFS, Lustre and GPFS, those of fcntl and flock on few of them.
        self.lock = JournalFileOpenLock(str(self.directory / "claim"))
        with self.claim():
            self.study = self.open_study()

    @contextmanager
    def claim(self):
        """Hold the study's lock, so that two processes do not decide at once."""
        self.lock.acquire()
        try:
            yield
        finally:
            self.lock.release()

    def open_study(self):
        """Return the study, new or as it was left; TrainingError if it was for something else."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        journal = self.directory / "study.journal"
        lock = JournalFileOpenLock(str(journal))
        mend_journal(journal, lock)
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
                    f"{self.directory} holds a study with {name} '{asked[name]}', not '{now}'; "
                    "name another directory with --study, or search as before"
                )
        study.set_user_attr("question", question)
        return study

    def run(self) -> None:
        """Train trials until the study has all, then report; with --one, one trial at most."""
        failures = 0
        while trial := self.next_trial():
            failures = 0 if self.train(trial) else failures + 1
            if failures == (1 if self.options.one else FAILED_IN_A_ROW):
                log = self.trial_directory(trial) / "log"
                raise TrainingError(f"the training failed; read why in {log}")
            if self.options.one:
                return
        if not self.stopped and not self.options.one:
            self.report()

    def next_trial(self):
        """Return a trial to train, or None when the study has all; wait where others train the last.

        Whoever trains the last trials may be killed, so somebody has to stay.
        """
        while not self.stopped:
            with self.claim():
                self.take_over()
                trials = self.study.get_trials(deepcopy=False)
                states = Counter(trial.state for trial in trials)
                if states[TrialState.COMPLETE] >= self.options.trials:
                    return None
                begun = states[TrialState.COMPLETE] + states[TrialState.RUNNING]
                if states[TrialState.WAITING] or begun < self.options.trials:
                    # A seed of its own for each trial: processes with the same would ask the same.
                    self.study.sampler = optuna.samplers.TPESampler(
                        seed=self.options.seed + len(trials),
                        n_startup_trials=min(10, max(4, self.options.trials // 3)),
                        constant_liar=True,  # mind what the others are trying at the moment
                    )
                    space = {p.name: distribution(p) for p in self.options.space}
                    trial = self.study.ask(space)  # first of all one that was given back
                    if "directory" not in trial.user_attrs:
                        trial.set_user_attr("directory", f"trial-{trial.number:04}")
                    directory = self.trial_directory(trial)
                    directory.mkdir(exist_ok=True)
                    (directory / "alive").touch()
                    return trial
            time.sleep(WAIT_SECONDS)
        return None

    def trial_directory(self, trial) -> Path:
        return self.directory / trial.user_attrs["directory"]

    def take_over(self) -> None:
        """Give back the trials whose process has not been heard of for long."""
        with tempfile.TemporaryFile(dir=self.directory) as file:
            now = os.fstat(file.fileno()).st_mtime  # by the file system's clock, as all the others
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            # One without a directory was killed while it held the lock, which is ours now.
            name = trial.user_attrs.get("directory")
            if name is None or self.is_silent(name, now):
                self.give_back(trial, "its process is gone")

    def is_silent(self, name: str, now: float) -> bool:
        """Return whether the process of a trial is gone: no sign of life for long, and none while this process looks.

        Where the clock of the file system jumps forward the first alone is true of all.
        """
        touched = last_touched(self.directory / name / "alive")
        if now - touched <= self.options.takeover:
            self.silent.pop(name, None)
            return False
        if self.silent.get(name, (None,))[0] != touched:
            self.silent[name] = touched, time.monotonic()
        return time.monotonic() - self.silent[name][1] > 3 * self.heartbeat

    @property
    def heartbeat(self) -> float:
        """The seconds between two signs of life of a trial."""
        return min(10, self.options.takeover / 6)

    def give_back(self, trial, why: str) -> None:
        """Put a trial that was interrupted back in line: the same parameters, the same directory."""
        if self.study.get_trials(deepcopy=False)[trial.number].state != TrialState.RUNNING:
            return  # another process has taken over
        self.study.tell(trial.number, state=TrialState.FAIL)
        self.study.enqueue_trial(trial.params, user_attrs=trial.user_attrs)
        print(f"{trial.user_attrs.get('directory', 'a trial')}: {why}; it will go on", flush=True)

    def train(self, trial) -> bool:
        """Train ``trial`` and tell the study; return whether there is a result."""
        directory = self.trial_directory(trial)
        shown = ", ".join(f"{name} {shorten(value)}" for name, value in trial.params.items())
        print(f"{directory.name}: {shown}", flush=True)
        status = self.wait_for(trial_command(self.options.command, directory, trial.params), directory)
        if status == STOPPED or (self.stopped and status != 0):
            with self.claim():
                self.give_back(trial, "stopped")
            sys.exit(status_of(self.stopped))
        value, reason = None, f"status {status}"
        if status == 0:
            try:
                value = last_value(directory / METRICS_FILE, self.options.metric)
            except (TrainingError, OSError) as error:
                reason = str(error)
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        with self.claim():  # not while another process decides to take it over
            told = self.study.tell(trial, value, state=state, skip_if_finished=True)
        if value is None:
            print(f"{directory.name}: failed ({reason})", flush=True)
        elif told.state != TrialState.COMPLETE:
            print(f"{directory.name}: another process has taken over", flush=True)
        else:
            print(f"{directory.name}: {self.options.metric} {shorten(value)}", flush=True)
        return value is not None

    def wait_for(self, command: list[str], directory: Path) -> int:
        """Run a training, its output appended to the trial's log; return its exit status."""
        with (directory / "log").open("ab") as log:
            self.child = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT,
                preexec_fn=PRCTL and partial(stop_with_parent, os.getpid()),
            )  # fmt: skip
        if self.stopped:  # between two statements
            self.child.terminate()
        while True:
            try:
                return self.child.wait(timeout=self.heartbeat)
            except subprocess.TimeoutExpired:
                (directory / "alive").touch()

    def stop(self, number: int, _frame) -> None:
        """Handle a signal: pass it on, the training writes a checkpoint and ends."""
        self.stopped = number
        if self.child and self.child.poll() is None:
            self.child.send_signal(number)

    def report(self) -> None:
        """Print the trials, best first, and draw them."""
        trials = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        trials.sort(key=lambda trial: trial.value, reverse=not self.options.minimize)
        names = [parameter.name for parameter in self.options.space]
        rows = [["", self.options.metric, *names, "directory"]]
        for place, trial in enumerate(trials, start=1):
            values = [trial.value, *(trial.params[name] for name in names)]
            rows.append([str(place), *map(shorten, values), trial.user_attrs["directory"]])
        print(table(rows), flush=True)
        picture = self.directory / "search.png"
        if draw_search(trials, self.options, picture):
            print(f"picture written to {picture}", flush=True)


def distribution(parameter: Parameter):
    """Return Optuna's form of a parameter."""
    if parameter.choices:
        return optuna.distributions.CategoricalDistribution(parameter.choices)
    low, high = parameter.low, parameter.high
    if isinstance(low, int) and isinstance(high, int):
        return optuna.distributions.IntDistribution(low, high, log=parameter.log)
    return optuna.distributions.FloatDistribution(low, high, log=parameter.log)
