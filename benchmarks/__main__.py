"""Measures on the testbed what this tree promises, each promise against the simplest thing that does the same.

Prints a Markdown table; progress goes to standard error. Starts the testbed if it is not up.
"""

import argparse
import contextlib
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TREE))
from benchmarks import scale  # noqa: E402
from benchmarks.experiments import COMPARISONS  # noqa: E402
from benchmarks.ratio import alternate, summarize  # noqa: E402
from benchmarks.session import Session  # noqa: E402
from benchmarks.table import markdown, quantity, scale_markdown  # noqa: E402
from testbed import recipes  # noqa: E402
from testbed.layout import Layout, TestbedError  # noqa: E402
from testbed.lifecycle import provide_optional, up  # noqa: E402
from testbed.packages import find_optional  # noqa: E402
from testbed.progress import end_like_interrupt  # noqa: E402


def main():
    """Measure what the command line selects; return the exit status."""
    options = parse_arguments()
    end_like_interrupt()
    layout = Layout.from_environment(os.environ)
    try:
        table = measure_scale(layout) if options.scale else measure_all(layout, options)
        print(table, end="")
        if options.output:
            options.output.write_text(table, encoding="utf-8")
    except (TestbedError, OSError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("benchmarks: interrupted", file=sys.stderr)
        return 130
    return 0


def parse_arguments():
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/run",
        description=__doc__,
        epilog="\n".join(["names:", *(f"  {each.name:14}{each.what}" for each in COMPARISONS)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [each.name for each in COMPARISONS]
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--only", action="append", metavar="NAME", choices=names, help="measure this one; repeatable")
    what.add_argument("--scale", action="store_true", help="measure what one rank pays in worlds of 1 to 4096 nodes")
    parser.add_argument("--pairs", type=positive, metavar="N", help="measured pairs of each, instead of 1 to 31")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the table to FILE too")
    return parser.parse_args()


def positive(text):
    """A number of pairs. Raises ValueError, which argparse reports."""
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def measure_all(layout, options):
    """Bring the testbed up, measure, and return the table. Raises TestbedError."""
    chosen = [each for each in COMPARISONS if each.name in (options.only or [each.name])]
    obstacle = up(layout)
    if any(each.packages for each in chosen):
        provide_optional(layout)
    reasons = {each.name: reason_against(each, obstacle) for each in chosen}
    possible = [each for each in chosen if not reasons[each.name]]
    require_modules(layout, dict.fromkeys(recipe for each in possible for recipe in each.recipes))
    load_before = os.getloadavg()[0]

    counts = {each.name: options.pairs or each.pairs for each in possible}
    expected = sum(each.estimate * (counts[each.name] + each.warm_up) for each in possible)
    say(f"{len(possible)} comparisons, about {expected / 60:.0f} min on two idle cores")
    results = []
    with scratch_directory(layout) as scratch:
        for each in possible:
            sides = each.prepare(Session(layout, scratch))
            measured = alternate(*sides, counts[each.name], progress(each, counts), each.warm_up)
            results.append((each, summarize(measured)))

    left_out = [(name, reason) for name, reason in reasons.items() if reason]
    return markdown(results, machine=describe_machine(load_before), left_out=left_out)


def measure_scale(layout):
    """Bring the testbed up, measure single ranks of large worlds, and return the table. Raises TestbedError."""
    up(layout)
    provide_optional(layout)
    require_modules(layout, [recipes.VENV])
    load_before = os.getloadavg()[0]
    with scratch_directory(layout) as scratch:
        costs = scale.measure(Session(layout, scratch), say)
    machine = describe_machine(load_before)
    return scale_markdown(costs, gpus=scale.GPUS, repetitions=scale.REPETITIONS, machine=machine)


def reason_against(comparison, obstacle):
    """Why a comparison cannot be measured here, or None; `obstacle` is why no container can run."""
    missing = [package for package in comparison.packages if not find_optional(package)]
    if missing:
        return f"it needs the package {', '.join(missing)}"
    if comparison.root and os.geteuid() != 0:
        return "only root can measure it"
    return obstacle if comparison.container else None


def require_modules(layout, needed):
    """Raise TestbedError unless all recipes `needed` are installed, from the tree as it is now."""
    missing = [recipe for recipe in needed if not recipes.is_current(layout, recipe)]
    if missing:
        raise TestbedError(f"Not installed from this tree as it is now: {', '.join(missing)}; ./demo does that.")


def describe_machine(load_before):
    """Where the numbers are from, and how busy it was."""
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}, "
        f"load average {load_before:.1f} before and {os.getloadavg()[0]:.1f} after"
    )


@contextlib.contextmanager
def scratch_directory(layout):
    """A directory inside the testbed for the time of the measurements, whatever ends them."""
    directory = Path(tempfile.mkdtemp(prefix="benchmark-", dir=layout.root))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def progress(comparison, counts):
    """A function that reports a pair of `comparison`."""

    def report(number, a, b):
        count = f"pair {number} of {counts[comparison.name]}" if number else "warm-up"
        sides = " against ".join(quantity(value, comparison.unit) for value in (a, b))
        say(f"{comparison.name}, {count}: {sides}, ratio {a / b:.2f}")

    return report


def say(line):
    """Write a line of progress."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
