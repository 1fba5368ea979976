"""Runs experiments on the testbed, one after the other, and collects their results."""

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import scale
from benchmarks.ratio import repeat, summarize
from benchmarks.results import Results
from benchmarks.session import Session
from benchmarks.table import quantity
from testbed import recipes
from testbed.layout import TestbedError
from testbed.lifecycle import provide_optional, up
from testbed.packages import find_optional


def measure(layout, experiments, *, rounds=None, with_scale=False):
    """Bring the testbed up and measure; return the Results.

    `rounds` replaces the number of rounds of each experiment. A failure of one does not end the others. Raises
    TestbedError if the testbed or the modules are missing, or if a rank of a large world fails.
    """
    obstacle = up(layout)
    if with_scale or any(each.packages for each in experiments):
        provide_optional(layout)
    reasons = {each.names: reason_against(each, obstacle) for each in experiments}
    possible = [each for each in experiments if not reasons[each.names]]
    needed = [recipe for each in possible for recipe in each.recipes]
    needed += [recipes.VENV] if with_scale else []
    require_modules(layout, dict.fromkeys(needed))

    expected = sum(each.expected_seconds(rounds) for each in possible)
    names = [name for each in possible for name in each.names]
    print_progress(f"{len(names)} rows, about {expected / 60:.0f} min on two idle cores")
    left_out = {name: reason for names, reason in reasons.items() if reason for name in names}
    start, load = time.monotonic(), os.getloadavg()[0]
    costs = measure_scale(layout) if with_scale else []
    ratios, failures = measure_ratios(layout, possible, rounds)
    return Results(ratios, left_out, failures, costs, describe_run(load, time.monotonic() - start))


def measure_ratios(layout, experiments, rounds):
    """The Ratio of every comparison by its name, and for each that failed the reason."""
    ratios, failures = {}, {}
    for experiment in experiments:
        try:
            measured = measure_experiment(layout, experiment, rounds or experiment.rounds)
        except (TestbedError, OSError) as error:
            print_progress(f"{', '.join(experiment.names)}: failed: {error}")
            failures.update(dict.fromkeys(experiment.names, str(error).splitlines()[0]))
        else:
            ratios.update({name: summarize(pairs) for name, pairs in measured.items()})
    return ratios, failures


def measure_experiment(layout, experiment, rounds):
    """The pairs of every comparison of an experiment, by its name. Raises TestbedError."""

    def report(number, pairs):
        count = f"pair {number} of {rounds}" if number else "warm-up"
        for comparison in experiment.comparisons:
            a, b = pairs[comparison.name]
            sides = " against ".join(quantity(value, comparison.unit) for value in (a, b))
            print_progress(f"{comparison.name}, {count}: {sides}, ratio {a / b:.2f}")

    with scratch_directory(layout) as scratch:
        return repeat(experiment.prepare(Session(layout, scratch)), rounds, report, experiment.warm_up)


def measure_scale(layout):
    """The Costs of single ranks of large worlds. Raises TestbedError."""
    with scratch_directory(layout) as scratch:
        return scale.measure(Session(layout, scratch), print_progress)


def reason_against(experiment, obstacle):
    """Why an experiment cannot be measured here, or None; `obstacle` is why no container can run, or None."""
    missing = [package for package in experiment.packages if not find_optional(package)]
    if missing:
        return f"the package {', '.join(missing)} is missing"
    if experiment.root and os.geteuid() != 0:
        return "only root can measure it"
    return obstacle if experiment.container else None


def require_modules(layout, needed):
    """Raise TestbedError unless all recipes `needed` are installed from the tree as it is now."""
    missing = [recipe for recipe in needed if not recipes.is_current(layout, recipe)]
    if missing:
        raise TestbedError(f"Not installed from this tree as it is now: {', '.join(missing)}. Run ./demo first.")


def describe_run(load_before, seconds):
    """A sentence on the date, the tree, the machine, its load and the duration."""
    commit = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    return (
        f"Measured on {time.strftime('%Y-%m-%d')}{f', commit {commit},' if commit else ''} in {seconds / 60:.0f} min "
        f"on {os.cpu_count()} cores, {platform.machine()}, Linux "
        f"{platform.release()}, with a load average of {load_before:.1f} before and {os.getloadavg()[0]:.1f} after."
    )


@contextlib.contextmanager
def scratch_directory(layout):
    """A directory in the testbed for the time of the block."""
    directory = Path(tempfile.mkdtemp(prefix="benchmark-", dir=layout.root))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def print_progress(line):
    """Write a line of progress."""
    print(line, file=sys.stderr, flush=True)
