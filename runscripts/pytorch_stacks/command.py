# SPDX-License-Identifier: BSD-3-Clause
"""The command `pytorch-stacks`: reads its options, asks Slurm for the nodes of a job, and runs itself on each."""

import argparse
import contextlib
import json
import os
import platform
import re
from pathlib import Path

from pytorch_command import call, positive, print_message, write_output
from pytorch_launch import LaunchError
from pytorch_launch.nodelist import hosts

from pytorch_stacks.dumps import report_dumps
from pytorch_stacks.node import read_node
from pytorch_stacks.report import report_ranks

NAME = "pytorch-stacks"
#: The command, which compute nodes start by this path.
PROGRAM = Path(__file__).resolve().parents[1] / "pytorch-stacks"
#: For srun to start and end the step, beyond the time for a node.
STEP_SECONDS = 20
OPTIONS = "--overlap --ntasks-per-node=1 --cpu-bind=none --mem=0 --gres=none --mpi=none --kill-on-bad-exit=0 --quiet"

EPILOG = """\
JOBID is a job (1234), an array or one of its elements (1234_5), or a component of a heterogeneous job (1234+1).
Ranks at the same place are one group; the smallest groups come first. The exit status is 0 if the stacks of all ranks
were read, or all collectives finished, 1 if some are missing or the output has no reader, and 2 if nothing could be
read.
"""


def main(arguments):
    options = parse(arguments)
    try:
        if options.dumps is not None:
            text, status = report_dumps(options.dumps, options.world_size)
        elif options.here or options.of:
            job, step = options.of or (None, None)
            answer = read_node(platform.node(), os.environ, os.geteuid(), options.timeout, job, step)
            shown = report_ranks(job and f"job {job}", [answer], [], is_part=True) if options.here else None
            text, status = shown or (in_lines(answer), 0)
        elif options.job is None:
            raise LaunchError("no job", "name one, as in `pytorch-stacks 1234` or `pytorch-stacks 1234.0`, see --help")
        else:
            text, status = "", 0
            for name, components, step in find_jobs(*options.job):
                asked = [ask_nodes(*component, step, options.timeout) for component in components]
                answers, silent = (sum(found, []) for found in zip(*asked))
                more, worse = report_ranks(f"job {name}", answers, silent, is_part="+" in name)
                text, status = text + more, max(status, worse)
    except (LaunchError, OSError) as error:
        print_message(NAME, error)
        return 2
    return write_output(NAME, text) or status


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog=NAME,
        description="Shows where each rank of a running job is, or which ranks did not come to a collective.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("job", nargs="?", type=job_and_step, metavar="JOBID[.STEP]", help="the ranks of a job or step")
    what.add_argument("--here", action="store_true", help="your ranks on this node, also without Slurm")
    what.add_argument("--dumps", metavar="DIR", help="compare the files that PyTorch's flight recorder wrote")
    parser.add_argument("--world-size", type=positive, metavar="N", help="ranks of the dumps, if they do not tell it")
    text = "seconds for a rank's stack (default: %(default)s)"
    parser.add_argument("--timeout", type=positive, default=20, metavar="S", help=text)
    parser.add_argument("--of", type=job_and_step, help=argparse.SUPPRESS)  # alone on the nodes of a job
    return parser.parse_args(arguments)


def job_and_step(text):
    """A job's number, with that of its element or component, and a step's number or None."""
    found = re.match(r"(\d{1,18}(?:[_+]\d{1,18})?)(?:\.(\d{1,9}))?$", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text[:40]} is not a job or step, such as 1234, 1234_5 or 1234.0")
    return found.groups()


def find_jobs(job, step):
    """The running jobs that a number stands for, as (name, components, step). Raises LaunchError.

    An array stands for each of its elements. A component is (number of the job for srun, group or None, node list): a
    heterogeneous job has several, and another job one.
    """
    rows = [row for row in _squeue("%i|%A|%T|%N", "--jobs=" + job) if "+" not in job or row[0] == job]
    running = [row for row in rows if row[2] in ("RUNNING", "COMPLETING", "SUSPENDED")]
    if not running:
        state = "its state is " + rows[0][2] if rows else "Slurm has no such job"
        raise LaunchError(f"job {job} does not run: {state}", "running jobs: squeue --me")
    jobs, steps = {}, []
    for name, number, _, nodes in running:
        if step is not None:
            # Slurm names a step by the element, or by the number of the component
            names = (f"{name}.", f"{number}.")
            own = [row for row in _squeue("%i|%N", "--steps", "--jobs=" + number) if row[0].startswith(names)]
            steps += own
            nodes = next((nodes for found, nodes in own if found.rpartition(".")[2] == step), None)
        if nodes is not None:
            leader, is_component, group = name.partition("+")
            component = (leader, group, nodes) if is_component else (number, None, nodes)
            jobs.setdefault(leader if job == leader else name, []).append(component)
    if not jobs:
        others = ", ".join(name for name, _ in steps) or "none"
        raise LaunchError(f"step {job}.{step} does not run", f"steps of this job: {others}")
    return [(name, components, step) for name, components in sorted(jobs.items())]


def _squeue(fields, *selection):
    status, output, errors = call(["squeue", "--noheader", "--format=" + fields, *selection], 60)
    if status != 0 and "Invalid job id" not in errors:
        raise LaunchError(f"squeue failed: {errors.strip()}", "run pytorch-stacks where Slurm's commands are")
    return [row.strip().split("|") for row in output.splitlines() if row.strip()]


def ask_nodes(job, group, nodes, step, seconds):
    """What `node.read_node` returned on each of `nodes`, and a list of (node, reason) for those without an answer."""
    names = hosts(nodes)
    where = [f"--jobid={job}", f"--nodelist={nodes}", f"--nodes={len(names)}", f"--ntasks={len(names)}"]
    where += [] if group is None else [f"--het-group={group}"]
    here = ["--of", job if step is None else f"{job}.{step}", "--timeout", str(seconds)]
    command = ["srun", *where, *OPTIONS.split(), "--job-name=pytorch-stacks", "--input=none", "--label"]
    limit = 2 * seconds + STEP_SECONDS
    status, output, errors = call([*command, str(PROGRAM), *here], limit)
    answers = read_lines(output)
    answered = {answer["node"] for answer in answers}
    # what srun or a node reported, without the statuses of tasks, of which there is one for each node
    lines = [line.strip() for line in errors.splitlines() if line.strip() and "Exited with exit code" not in line]
    lines += [f"timed out after {limit} s"] * (status == 124)
    reason = ": ".join(["no answer", *lines[-1:]])
    return answers, [(name, reason) for name in names if name not in answered]


def in_lines(answer):
    """An answer in short lines: srun mixes those of tasks, and cuts them at 1,024 bytes (slurmstepd/io.c)."""
    return json.dumps(answer, indent=0) + "\n"


def read_lines(text):
    """The answers in the output of `srun --label`; one that is not complete is left out."""
    tasks, answers = {}, []
    for task, _, line in (line.partition(": ") for line in text.splitlines()):
        tasks[task.strip()] = tasks.get(task.strip(), "") + line
    for answer in tasks.values():
        with contextlib.suppress(ValueError):
            answers.append(json.loads(answer[answer.index('{"node"') :]))
    return answers
