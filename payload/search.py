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
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from training import TrainingError
from training.files import read_file
from training.metrics import BLUE, GREY, METRICS_FILE, ORANGE, finite_number, read_objects, write_picture
from training.options import OneLineParser
from training.signals import STOPPED, end_at_once, end_no_more, status_of

if __name__ == "__main__":
    end_at_once()

try:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
    from optuna.trial import TrialState
except ImportError as error:
    NO_OPTUNA = str(error)
else:
    NO_OPTUNA = None

SCRIPT = Path(__file__).with_name("mnist_ddp.py")
SPACE = ["lr=log:0.001..0.1", "batch-size=64,128,256,512,1024"]
WAIT_SECONDS = 1  # between two looks at the study
FAILED_IN_A_ROW = 3  # trainings, after which this process gives up
PRCTL = getattr(ctypes.CDLL(None), "prctl", None)  # Linux alone has it
PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


class Parameter(NamedTuple):
    """A hyper-parameter: one of ``choices``, else between ``low`` and ``high``, evenly or in log."""

    text: str
    name: str
    low: float = 0
    high: float = 0
    log: bool = False
    choices: tuple = ()


def parse_parameter(text: str) -> Parameter:
    """Read ``lr=log:0.001..0.1``, ``warmup=0..2`` or ``batch-size=64,128``.

    Between two whole numbers lie whole numbers. Raises ValueError where it is none of these.
    """

    def number(word: str) -> float:
        value = int(word) if word.lstrip("-").isdigit() else float(word)
        if not abs(value) < (2**63 if isinstance(value, int) else 1e300):  # what Optuna can compute with
            raise ValueError(text)
        return value

    name, _, values = text.partition("=")
    if not name or not values:
        raise ValueError(text)
    if ".." not in values:
        try:
            return Parameter(text, name, choices=tuple(map(number, values.split(","))))
        except ValueError:
            return Parameter(text, name, choices=tuple(values.split(",")))
    log = values.startswith("log:")
    low, _, high = values[len("log:") * log :].partition("..")
    parameter = Parameter(text, name, number(low), number(high), log)
    if not parameter.low < parameter.high or (log and parameter.low <= 0):
        raise ValueError(text)
    return parameter


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


def mend_journal(journal: Path, lock) -> None:
    """Cut off the part of a line that a full disk leaves: Optuna would read no further.

    Raises TrainingError where another line is damaged: the numbers of all later trials depend on it.
    """
    if not journal.exists():
        return
    lock.acquire()
    try:
        content = read_file(journal)
        *lines, rest = content.split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                if "op_code" not in json.loads(line):
                    raise ValueError
            except (ValueError, TypeError, RecursionError):
                raise damaged_journal(journal, f"line {number}") from None
        if rest:
            os.truncate(journal, len(content) - len(rest))
    finally:
        lock.release()


def damaged_journal(journal: Path, where: str) -> TrainingError:
    return TrainingError(
        f"{journal}: damaged ({where}). Restore the file, or name another directory with --study; nothing was changed"
    )


def distribution(parameter: Parameter):
    """Return Optuna's form of a parameter."""
    if parameter.choices:
        return optuna.distributions.CategoricalDistribution(parameter.choices)
    low, high = parameter.low, parameter.high
    if isinstance(low, int) and isinstance(high, int):
        return optuna.distributions.IntDistribution(low, high, log=parameter.log)
    return optuna.distributions.FloatDistribution(low, high, log=parameter.log)


def trial_command(command: list[str], directory: Path, parameters: dict) -> list[str]:
    """Return the command that trains with ``parameters`` in ``directory``."""
    chosen = [word for name, value in parameters.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-u", *command, "--modelpath", str(directory), *chosen]


def stop_with_parent(parent: int) -> None:
    """Have this process stopped when its parent is killed: who takes over has the directory alone."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    PRCTL(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # killed before that
        os._exit(os.EX_TEMPFAIL)


def last_value(metrics_file: Path, metric: str) -> float:
    """Return the metric of the last epoch; TrainingError where there is none or it is not a finite number."""
    epochs = read_objects(metrics_file)
    if not epochs or metric not in epochs[-1]:
        raise TrainingError(f"no {metric} in {METRICS_FILE}")
    value = finite_number(epochs[-1][metric])
    if value is None:
        raise TrainingError(f"{metric} in {METRICS_FILE} is {repr(epochs[-1][metric])[:40]}, not a finite number")
    return value


def last_touched(path: Path) -> float:
    """Return the time of the last change; 0 where there is no such file."""
    try:
        with path.open() as file:  # NFS asks the server again for a file that is opened
            return os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return 0


def shorten(value: object) -> str:
    return f"{value:#.4g}" if isinstance(value, float) else str(value)


def table(rows: list[list[str]]) -> str:
    """Return rows of text as lines with the columns one below the other."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(map(str.rjust, row, widths)) for row in rows)


def draw_search(trials: list, options: argparse.Namespace, picture: Path) -> bool:
    """Draw the metric over the trials, which come best first, and over each parameter."""
    best = trials[0]
    values = [trial.value for trial in trials]
    # One training that went astray would press all others together: the worst quarter may end at
    # the edge, as a triangle. The axis ends there too, so what lies within it is where its value is.
    better = min if options.minimize else max
    edge = better(values[0] + 2 * (values[len(values) * 3 // 4] - values[0]), values[-1])
    clipped = edge not in (values[0], values[-1])
    margin = 0.05 * abs(values[0] - edge) or 0.5

    def clip(value: float) -> float:
        return better(value, edge) if clipped else value

    def scatter(panel, places: list) -> None:
        beyond = [clip(value) != value for value in values]
        for marker, label, group in (
            ("o", "trial", False), ("^" if options.minimize else "v", "trial, beyond the scale", True),
        ):  # fmt: skip
            points = [(x, clip(y)) for x, y, outside in zip(places, values, beyond) if outside == group]
            if points:
                panel.plot(*zip(*points), marker, color=BLUE, alpha=0.7, markersize=6, label=label, clip_on=False)
        panel.plot(places[0], values[0], "*", color=ORANGE, markersize=14, label="best trial", clip_on=False)

    def draw(figure) -> None:
        chosen = ", ".join(f"{name} {shorten(value)}" for name, value in best.params.items())
        title = f"Best of {len(trials)} trials: {options.metric} {shorten(best.value)} with {chosen}"
        figure.suptitle(title, x=0.01, ha="left", weight="bold")
        panels = figure.subplots(1, 1 + len(options.space), sharey=True)
        panels[0].set(xlabel="trial", ylabel=options.metric)
        panels[0].xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        order = sorted(trials, key=lambda trial: trial.number)
        so_far = accumulate((t.value for t in order), better)
        numbers = [trial.number for trial in order]
        panels[0].step(numbers, list(map(clip, so_far)), where="post", color=GREY, label="best so far")
        scatter(panels[0], [trial.number for trial in trials])
        for panel, parameter in zip(panels[1:], options.space):
            places = [trial.params[parameter.name] for trial in trials]
            panel.set_xlabel(parameter.name)
            if parameter.choices:
                places = [parameter.choices.index(place) for place in places]
                panel.set_xticks(range(len(parameter.choices)), map(str, parameter.choices))
            elif parameter.log:
                panel.set_xscale("log", subs=())
                subs = (1, 2, 5) if max(places) < 300 * min(places) else (1,)
                panel.xaxis.get_major_locator().set_params(subs=subs)
                panel.xaxis.set_major_formatter("{x:g}")
                panel.xaxis.set_minor_formatter("")
            elif isinstance(parameter.low, int):
                panel.xaxis.get_major_locator().set_params(integer=True)
            scatter(panel, places)
        end = edge if clipped else values[-1] - margin * (-1 if options.minimize else 1)
        panels[0].set_ylim(sorted((end, values[0] + margin * (-1 if options.minimize else 1))))
        lines, labels = panels[0].get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside lower left", ncols=len(labels), frameon=False)

    return write_picture(picture, draw, width=4 * (1 + len(options.space)))


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
        optuna.logging.set_verbosity(optuna.logging.WARNING)
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
