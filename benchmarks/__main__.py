"""Measures on the testbed what this tree promises, each promise against the simplest program that does the same.

Prints a table in Markdown; progress goes to standard error. Starts the testbed if it is down.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import measure  # noqa: E402
from benchmarks.experiments import COMPARISONS, EXPERIMENTS  # noqa: E402
from benchmarks.page import PICTURE, tables, write_page  # noqa: E402
from benchmarks.results import RESULTS, Results  # noqa: E402
from testbed.layout import Layout, TestbedError  # noqa: E402
from testbed.progress import end_like_interrupt  # noqa: E402
from testbed.recipes import VENV, module  # noqa: E402


def main():
    """Measure what the command line selects; return the exit status."""
    options = parse_arguments()
    end_like_interrupt()
    layout = Layout.from_environment(os.environ)
    try:
        results = Results.load(RESULTS) if options.redraw else measure_selected(layout, options)
        report(layout, options, results)
    except (TestbedError, OSError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("benchmarks: interrupted", file=sys.stderr)
        return 130
    if not results.failures:
        return 0
    options_again = [*(["--page"] if options.page else []), *(f"--only {name}" for name in results.failures)]
    print(f"benchmarks: rows failed. Measure them again: benchmarks/run {' '.join(options_again)}", file=sys.stderr)
    return 1


def parse_arguments():
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/run",
        description=f"{__doc__}\nWithout options: all rows, in about {expected_minutes()} minutes on two idle cores.",
        epilog="\n".join(["rows:", *describe_rows()]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [each.name for each in COMPARISONS]
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--only", action="append", metavar="NAME", choices=names, help="measure this row; repeatable")
    what.add_argument("--scale", action="store_true", help="measure what one rank costs in worlds of 1 to 4096 nodes")
    what.add_argument("--redraw", action="store_true", help="write docs/benchmarks.md again, without measuring")
    parser.add_argument("--page", action="store_true", help="write docs/benchmarks.md: all rows and --scale, or --only")
    parser.add_argument("--pairs", type=positive, metavar="N", help="number of pairs of each row, instead of 1 to 21")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the table to FILE, too")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the ratios to FILE, as SVG")
    options = parser.parse_args()
    if options.pairs and (options.page or options.redraw or options.scale):
        parser.error("--pairs goes with --only or with all rows, not with --page, --redraw or --scale")
    if options.page and (options.redraw or options.scale):
        parser.error("--page goes alone or with --only")
    return options


def expected_minutes():
    """The duration of all rows on two idle cores."""
    return round(sum(each.expected_seconds() for each in EXPERIMENTS) / 60)


def describe_rows():
    """A line of help for each row."""
    for experiment in EXPERIMENTS:
        for each in experiment.comparisons:
            yield f"  {each.name:18}{each.title}"


def positive(text):
    """A number of pairs. Raises ValueError, which argparse reports."""
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def measure_selected(layout, options):
    """The Results of what the command line selects. Raises TestbedError."""
    if options.scale:
        return measure.measure(layout, [], with_scale=True)
    selected = EXPERIMENTS
    if options.only:
        selected = [each for each in EXPERIMENTS if set(each.names) & set(options.only)]
    everything = options.page and not options.only
    results = measure.measure(layout, selected, rounds=options.pairs, with_scale=everything)
    if options.page:
        return Results.load(RESULTS).replace(results.keep(options.only, "")) if options.only else results
    return results.keep(options.only, notice(options)) if options.only or options.pairs else results


def notice(options):
    """Why the results of a reduced run are not for the page."""
    reasons = [f"--pairs {options.pairs}"] if options.pairs else []
    reasons += [f"--only {name}" for name in options.only or ()]
    return f"Not for docs/benchmarks.md: measured with {' '.join(reasons)}"


def report(layout, options, results):
    """Print the tables, and write the files that the command line names."""
    if options.page:
        results.save(RESULTS)  # first: --redraw needs no second measurement
    if options.page or options.redraw:
        draw(layout, RESULTS, PICTURE)  # before the page, which keeps its tables if this fails
        write_page(results)
    sections = tables(results)
    text = sections["large worlds"] if options.scale else sections["results"]
    print(text, end="")
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    if options.picture:
        with measure.scratch_directory(layout) as scratch:
            results.save(scratch / RESULTS.name)
            draw(layout, scratch / RESULTS.name, options.picture)


def draw(layout, source, target):
    """Draw the results in a file, with the matplotlib of the venv module. Raises TestbedError."""
    python = layout.easybuild / "software" / module(VENV) / "venv" / "bin" / "python"
    command = [python, Path(__file__).with_name("picture.py"), source, target]
    target.parent.mkdir(parents=True, exist_ok=True)
    if not python.exists():
        raise TestbedError(f"matplotlib not found: {python} does not exist. Install it with ./demo.")
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode:
        reason = result.stderr.strip() or f"status {result.returncode}"
        raise TestbedError(f"cannot draw the picture: {reason.splitlines()[-1]}")


if __name__ == "__main__":
    sys.exit(main())
