"""Measures on the testbed what this tree promises, each promise against the simplest program that does the same.

Prints a table in Markdown; progress goes to standard error. Starts the testbed if it is down.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import table  # noqa: E402
from benchmarks.measure import measure  # noqa: E402
from benchmarks.results import RESULTS, Results  # noqa: E402
from benchmarks.rows import EXPERIMENTS, ROWS  # noqa: E402
from testbed.layout import Layout, TestbedError  # noqa: E402
from testbed.progress import exit_status  # noqa: E402


def main(options):
    """Measure what the command line selects; return the exit status."""
    layout = Layout.from_environment(os.environ)
    if options.redraw:
        results = Results.load(RESULTS)
    else:
        results = measure_selected(layout, options)
    report(options, results)
    if not results.failures:
        return 0
    command = "benchmarks/run"
    if options.page:
        command += " --page"
    rows = " ".join(f"--only {name}" for name in results.failures)
    raise TestbedError(f"rows failed. Measure them again: {command} {rows}")


def parse_arguments():
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/run",
        description=f"{__doc__}\nWithout options: all rows, in an hour or more on two idle cores.",
        epilog="\n".join(["rows:", *(f"  {row.name:18}{row.title}" for row in ROWS.values())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--only", action="append", metavar="NAME", choices=ROWS, help="measure this row; repeatable")
    what.add_argument("--redraw", action="store_true", help="write docs/benchmarks.md again, without measuring")
    parser.add_argument("--page", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--pairs", type=int, metavar="N", help="number of pairs of each row, instead of 1 to 21")
    options = parser.parse_args()
    if options.pairs and (options.page or options.redraw):
        parser.error("--pairs is for a first look: without --page and --redraw")
    if options.pairs is not None and options.pairs < 1:
        parser.error("--pairs: a number from 1")
    return options


def measure_selected(layout, options):
    """The Results of what the command line selects, with the rows that are measured with it. Raises TestbedError."""
    selected = [each for each in EXPERIMENTS if set(each.names) & set(options.only or ROWS)]
    results = measure(layout, selected, options.pairs)
    if options.page:
        return Results.load(RESULTS).replace(results)
    return results


def report(options, results):
    """Print the tables, and write the page if the command line names it."""
    if options.page:
        results.save(RESULTS)  # first: --redraw needs no second measurement
    if options.page or options.redraw:
        table.PAGE.write_text(table.update(table.PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    print(table.results_markdown(results), end="")


if __name__ == "__main__":
    chosen = parse_arguments()
    sys.exit(exit_status(lambda: main(chosen), program="benchmarks", again="No result was kept."))
