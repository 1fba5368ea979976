# SPDX-License-Identifier: BSD-3-Clause
"""Reads the options of `pytorch-stacks`, and prints what it found."""

import argparse
import os
import platform
import re
import sys
from pathlib import Path

from pytorch_stacks import StacksError
from pytorch_stacks.groups import group_ranks
from pytorch_stacks.report import as_json, as_text

#: The command, which compute nodes start by this path.
PROGRAM = Path(__file__).resolve().parents[1] / "pytorch-stacks"

EPILOG = """\
Ranks at the same place are one group; the smallest groups come first. The exit status is 0 if the stacks of all ranks
were read, 1 if some are missing, and 2 if nothing could be read.
"""


def main(arguments):
    """Show stacks or dumps; return the exit status."""
    options = parse(arguments)
    try:
        if options.dumps is not None:
            from pytorch_stacks.dumps import report_dumps

            text, status = report_dumps(options.dumps, options.json)
        else:
            text, status = show_stacks(options)
        sys.stdout.buffer.write(text.encode(errors="surrogateescape"))
        sys.stdout.flush()
    except StacksError as error:
        sys.stderr.write(f"pytorch-stacks: {error}\n")
        return 2
    except BrokenPipeError:  # such as `pytorch-stacks 7 | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    return status


def show_stacks(options):
    """The text about the ranks of a job, or of this node, and the exit status."""
    if options.here:
        from pytorch_stacks.lines import in_lines
        from pytorch_stacks.node import read_node

        job, step = options.of or (None, None)
        answer = read_node(platform.node(), os.environ, os.geteuid(), options.timeout, job, step)
        if options.raw:
            return in_lines(answer), 0
        answers, silent = [answer], []
    else:
        from pytorch_stacks.job import ask_nodes, find_nodes

        job, step = options.job or (None, None)
        if job is None:
            raise StacksError("no job. Name one, as in `pytorch-stacks 1234` or `pytorch-stacks 1234.0`, see --help")
        job, nodes = find_nodes(job, step, os.geteuid())
        answers, silent = ask_nodes(job, step, nodes, options.timeout, str(PROGRAM))
    launches = group_ranks(answers)
    if not launches and not silent:
        raise StacksError(
            "no rank found: no Python with RANK and WORLD_SIZE among the processes of {}. Start ranks with "
            "conda-python-distributed or torchrun".format("this node" if job is None else f"job {job}")
        )
    if options.here:
        launches = [launch._replace(missing=[]) for launch in launches]  # they may be on other nodes
    is_complete = not silent and not any(launch.missing or launch.faults for launch in launches)
    show = as_json if options.json else as_text
    return show(job, launches, silent), int(not is_complete)


def parse(arguments):
    """The options."""
    parser = argparse.ArgumentParser(
        prog="pytorch-stacks",
        description="Shows where each rank of a running job is, or which ranks did not come to a collective.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("job", nargs="?", type=job_and_step, metavar="JOBID[.STEP]", help="the ranks of a job or step")
    what.add_argument("--here", action="store_true", help="your ranks on this node, also without Slurm")
    what.add_argument("--dumps", metavar="DIR", help="compare the files that PyTorch's flight recorder wrote")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument(
        "--timeout", type=seconds, default=20, metavar="S", help="seconds for a rank's stack (default: %(default)s)"
    )
    parser.add_argument("--of", type=job_and_step, help=argparse.SUPPRESS)
    parser.add_argument("--raw", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def job_and_step(text):
    """A job's number or array task, and a step's number or None."""
    found = re.match(r"(\d{1,18}(?:[_+]\d{1,18})?)(?:\.(\d{1,9}))?$", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text[:40]} is not a job or step, such as 1234 or 1234.0")
    return found.groups()


def seconds(text):
    """A number of seconds."""
    if not text.isdecimal() or not 1 <= int(text[:7]) <= 3600:
        raise argparse.ArgumentTypeError(f"{text[:20]} is not a number of seconds from 1 to 3600")
    return int(text)
