"""Runs experiments on the testbed, one after the other, and collects their results."""

import contextlib
import os
import platform
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from benchmarks.results import Ratio, Results
from benchmarks.rows import ROWS
from benchmarks.session import TREE, NotMeasurable, Session
from benchmarks.table import UNITS
from testbed import recipes
from testbed.layout import TestbedError
from testbed.lifecycle import provide_optional, up


def measure(layout, experiments, rounds=None):
    """Bring the testbed up and measure; return the Results.

    `rounds` replaces the number of rounds of each experiment. A failure of one does not end the others. Raises
    TestbedError if the testbed or the modules are missing.
    """
    obstacle = up(layout)
    provide_optional(layout)
    left_out = {}
    possible = []
    for experiment in experiments:
        if obstacle and recipes.CONTAINER in experiment.recipes:
            left_out.update(dict.fromkeys(experiment.names, obstacle))
        else:
            possible.append(experiment)
    needed = set().union(*(experiment.recipes for experiment in possible))
    missing = [recipe for recipe in sorted(needed) if not recipes.is_current(layout, recipe)]
    if missing:
        raise TestbedError(f"Not installed from this tree as it is now: {', '.join(missing)}. Run ./demo first.")

    start = time.monotonic()
    load = os.getloadavg()[0]
    results = Results({}, left_out, {})
    for experiment in possible:
        measure_experiment(layout, experiment, rounds or experiment.rounds, results)
    run = describe_run(load, time.monotonic() - start)
    return results._replace(ratios={name: ratio._replace(run=run) for name, ratio in results.ratios.items()})


def measure_experiment(layout, experiment, rounds, results):
    """Add the rows of an experiment to `results`."""
    try:
        with tempfile.TemporaryDirectory(prefix="benchmark-", dir=layout.root) as scratch:
            measured = list(report_rounds(experiment, Session(layout, Path(scratch)), rounds))
    except NotMeasurable as reason:
        results.left_out.update(dict.fromkeys(experiment.names, str(reason)))
    except (TestbedError, OSError) as error:
        print_progress(f"{', '.join(experiment.names)}: failed: {error}")
        results.failures.update(dict.fromkeys(experiment.names, str(error).splitlines()[0]))
    else:
        pairs = measured[experiment.warm_up :]
        results.ratios.update({name: Ratio.of(column) for name, column in zip(experiment.names, zip(*pairs))})


def report_rounds(experiment, session, rounds):
    """Measure rounds and report each; the first one is number 0 if it only warms up."""
    first = 1 - experiment.warm_up  # round 0 only warms up
    for name in experiment.names:
        print_progress(f"{name}. A: {ROWS[name].a}. B: {ROWS[name].b}.")
    with contextlib.closing(experiment.pairs(session)) as generator:
        for number, pairs in enumerate(islice(generator, rounds + 1 - first), first):
            for name, (a, b) in zip(experiment.names, pairs):
                sides = " against ".join(UNITS[ROWS[name].unit](value) for value in (a, b))
                print_progress(f"{name}, pair {number} of {rounds}: {sides}, ratio {a / b:.2f}")
            yield pairs


def describe_run(load, seconds):
    """A sentence on the date, the tree, the machine, its load and the duration."""
    command = ["git", "-C", str(TREE), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()
    return (
        f"Measured on {time.strftime('%Y-%m-%d')}, commit {commit}, in {seconds / 60:.0f} min "
        f"on {os.cpu_count()} cores, {platform.machine()}, Linux "
        f"{platform.release()}, with a load average of {load:.1f} before and {os.getloadavg()[0]:.1f} after."
    )


def print_progress(line):
    """Write a line of progress."""
    print(line, file=sys.stderr, flush=True)
