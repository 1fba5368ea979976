# SPDX-License-Identifier: BSD-3-Clause
"""The command `pytorch-stacks`: reads its options, asks Slurm for the nodes of a job, and runs itself on each."""

import argparse
import contextlib
import json
import os
import platform
import re
from collections import namedtuple
from pathlib import Path

from pytorch_command import Parser, call, positive, print_message, write_output
from pytorch_launch import LaunchError
from pytorch_launch.launchers.allocation import beside_step
from pytorch_launch.nodelist import hosts

from pytorch_stacks import Rank, Thread
from pytorch_stacks.node import read_node, this_node
from pytorch_stacks.report import report_ranks

NAME = "pytorch-stacks"
#: The command, which compute nodes start by this path.
PROGRAM = Path(__file__).resolve().parents[1] / "pytorch-stacks"
#: States of a job that has processes.
RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED")
#: For srun to start and end the step, beyond the time for a node.
STEP_SECONDS = 20
OPTIONS = "--mem=0 --gres=none --quiet --job-name=pytorch-stacks --input=none --label"

EPILOG = """\
JOBID is a job (1234), or an array or one of its elements (1234_5).
Ranks at the same place are one group; the smallest groups come first. The exit status is 0 if the stacks of all ranks
were read, 1 if some are missing or the output has no reader, and 2 if nothing could be read.
"""

#: A running job or element of an array: its name, as 1234_5, its number, state and node list.
Job = namedtuple("Job", "name number state nodes")


def main(arguments):
    options = parse(arguments)
    try:
        text, status = answer(options)
    except (LaunchError, OSError) as error:
        print_message(NAME, error)
        return 2
    return write_output(NAME, text) or status


def answer(options):
    """The text to print and the exit status. Raises LaunchError, OSError."""
    if options.here:
        ranks = read_node(this_node(platform.node(), os.geteuid()), options.timeout)
        return report_ranks(None, ranks, [])
    if options.of:
        selection = this_node(platform.node(), os.geteuid(), *options.of)
        return in_lines(selection.node, read_node(selection, options.timeout)), 0
    if options.job is None:
        raise LaunchError("no job", "name one, as in `pytorch-stacks 1234` or `pytorch-stacks 1234.0`, see --help")
    return report_job(*options.job, options.timeout)


def report_job(number, step, seconds):
    """The text about the ranks of a job, and the exit status. Raises LaunchError."""
    text, status = "", 0
    for job in find_jobs(number):
        ranks, silent = ask_nodes(job, step, seconds)
        more, worse = report_ranks(f"job {job.name}", ranks, silent)
        text += more
        status = max(status, worse)
    return text, status


def parse(arguments):
    parser = Parser(
        prog=NAME,
        description="Shows where each rank of a running job is.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("job", nargs="?", type=job_and_step, metavar="JOBID[.STEP]", help="the ranks of a job or step")
    what.add_argument("--here", action="store_true", help="your ranks on this node, also without Slurm")
    text = "seconds for a rank's stack (default: %(default)s)"
    parser.add_argument("--timeout", type=positive, default=20, metavar="S", help=text)
    parser.add_argument("--of", type=job_and_step, help=argparse.SUPPRESS)  # alone on the nodes of a job
    return parser.parse_args(arguments)


def job_and_step(text):
    """A job's number, with that of its element, and a step's number or None."""
    found = re.match(r"(\d{1,18}(?:_\d{1,18})?)(?:\.(\d{1,9}))?$", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text[:40]} is not a job or step, such as 1234, 1234_5 or 1234.0")
    return found.groups()


def find_jobs(job):
    """The running Jobs that a number stands for: an array for each of its elements. Raises LaunchError."""
    jobs = [Job(*row) for row in squeue("%i|%A|%T|%N", "--jobs=" + job)]
    if any("+" in found.name for found in jobs):
        raise LaunchError(f"job {job} is heterogeneous", "run `pytorch-stacks --here` on each of its nodes")
    running = [found for found in jobs if found.state in RUNNING]
    if not running:
        state = "Slurm has no such job"
        if jobs:
            state = f"its state is {jobs[0].state}"
        raise LaunchError(f"job {job} does not run: {state}", "running jobs: squeue --me")
    return sorted(running)


def squeue(fields, *selection):
    status, output, errors = call(["squeue", "--noheader", "--format=" + fields, *selection], 60)
    if status != 0 and "Invalid job id" not in errors:
        raise LaunchError(f"squeue failed: {errors.strip()}", "run pytorch-stacks where Slurm's commands are")
    return [row.strip().split("|") for row in output.splitlines() if row.strip()]


def ask_nodes(job, step, seconds):
    """The Ranks on the nodes of a Job, and (node, reason) for nodes without an answer."""
    names = hosts(job.nodes)
    of = job.number
    if step is not None:
        of += f".{step}"
    here = [str(PROGRAM), "--of", of, "--timeout", str(seconds)]
    limit = 2 * seconds + STEP_SECONDS
    status, output, errors = call(["srun", *beside_step(job.number, names), *OPTIONS.split(), *here], limit)
    answers = read_lines(output)
    # what srun or a node reported, without the statuses of tasks, of which there is one for each node
    lines = [line.strip() for line in errors.splitlines() if line.strip() and "Exited with exit code" not in line]
    if status == 124:
        lines.append(f"timed out after {limit} s")
    reason = ": ".join(["no answer", *lines[-1:]])
    return sum(answers.values(), []), [(name, reason) for name in names if name not in answers]


def in_lines(node, ranks):
    """An answer in short lines: srun mixes those of tasks, and cuts them at 1,024 bytes (slurmstepd/io.c)."""
    return json.dumps({"node": node, "ranks": ranks}, indent=0) + "\n"


def read_lines(text):
    """The Ranks by node in the output of `srun --label`; an answer that is not complete is left out."""
    tasks, answers = {}, {}
    for line in text.splitlines():
        task, _, rest = line.partition(": ")
        tasks[task.strip()] = tasks.get(task.strip(), "") + rest
    for answer in tasks.values():
        with contextlib.suppress(ValueError):
            found = json.loads(answer[answer.index('{"node"') :])
            answers[found["node"]] = [read_rank(values) for values in found["ranks"]]
    return answers


def read_rank(values):
    rank = Rank(*values)
    return rank._replace(threads=[Thread(*thread) for thread in rank.threads])
