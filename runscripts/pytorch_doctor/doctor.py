# SPDX-License-Identifier: BSD-3-Clause
"""Runs the checks in processes with a deadline, as a file system or a command may hang, and prints the findings."""

import argparse
import json
import os
import platform
import select
import signal
import sys
import time
from collections import Counter

from pytorch_command import positive, print_message, write_output
from pytorch_launch import LaunchError
from pytorch_launch.world import is_first_task_of_node, node_name

from pytorch_doctor import FAIL, NOT_APPLICABLE, OK, WARN, Finding, fail
from pytorch_doctor.checks import files, gpu, installation, network, slurm
from pytorch_doctor.context import Context

PROGRAM = "pytorch-doctor"
#: The checks, by name.
CHECKS = {
    name[len("check_") :]: function
    for subject in (installation, gpu, network, files, slurm)
    for name, function in vars(subject).items()
    if name.startswith("check_")
}
#: One process runs these, as they share the facts about torch; each of the others is a process.
OF_TORCH = ("torch", "gpu", "driver", "network", "versions")
SLOW = "something hangs, such as a file system: try again with a larger --timeout, then ask the site"
BROKEN = "this is a bug of pytorch-doctor: please report this line"
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)

EPILOG = """\
Verdicts: ok; warn: training works, but with a fault; FAIL: training does not work; n.a.: nothing to check here.
The exit status is 1 if a check fails. To check a compute node, run it in a job: srun pytorch-doctor
"""


def main(arguments):
    options = parse(arguments)
    if not is_first_task_of_node(os.environ):
        return 0  # the first task reports for its node
    for number in INTERRUPTIONS:
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # which also ends the checks
    checks = {name: CHECKS[name] for name in CHECKS if name in options.only}
    try:
        findings = run_all(checks, Context(os.environ), options.timeout)
    except OSError as error:  # of fork or pipe
        print_message(PROGRAM, f"cannot start the checks: {error.strerror}. Raise the limits of this shell (ulimit -a)")
        return 1
    show = as_json if options.json else as_table
    text = show(node_name(os.environ, platform.node()), findings, faults_only=options.faults)
    return int(write_output(PROGRAM, text) != 0 or any(finding.verdict == FAIL for finding in findings))


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Checks the loaded PyTorch module, this node and this job, and reports faults and their remedies.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, listed = parser.add_argument, ", ".join(CHECKS)
    add("--faults", action="store_true", help="print only warnings and failures, and the counts")
    add("--json", action="store_true", help="print one line of JSON")
    add("--only", type=names, default=CHECKS, metavar="CHECK,...", help=f"of: {listed} (default: all)")
    text = "seconds for all checks, which run in parallel (default: %(default)s)"
    add("--timeout", type=positive, default=180, metavar="S", help=text)
    return parser.parse_args(arguments)


def names(text):
    unknown = [name for name in text.split(",") if name not in CHECKS]
    if unknown:
        raise argparse.ArgumentTypeError("unknown check " + ", ".join(unknown))
    return text.split(",")


def run_all(checks, here, seconds):
    """The findings of all checks, name to function of `here`, in their order; `seconds` is the deadline of all."""
    groups, running, found, deadline = {}, [], {}, time.monotonic() + seconds
    for name in checks:
        groups.setdefault("torch" if name in OF_TORCH else name, []).append(name)
    # a signal between the start of a process and its entry in `running` would leave that process behind
    signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTIONS)
    try:
        for group in groups.values():
            pipe, writing = os.pipe()
            process = os.fork()
            if process == 0:
                answer({name: checks[name] for name in group}, here, writing)
            os.close(writing)
            running.append((process, pipe, group))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTIONS)
        for _, pipe, group in running:
            text, piece = b"", None
            while piece != b"" and select.select([pipe], [], [], max(0, deadline - time.monotonic()))[0]:
                piece = os.read(pipe, 65536)
                text += piece
            none = ("ended without an answer", BROKEN) if piece == b"" else (f"no answer within {seconds} s", SLOW)
            found.update((name, fail(*none)._replace(check=name)) for name in group)
            answers = [Finding(*json.loads(line)) for line in text.decode().split("\n")[:-1]]
            found.update((one.check, one) for one in answers)
    finally:
        for process, pipe, _ in running:
            os.close(pipe)
            try:
                os.killpg(process, signal.SIGKILL)
            except ProcessLookupError:  # before setsid
                os.kill(process, signal.SIGKILL)
            os.waitpid(process, os.WNOHANG)  # it cannot be killed while it is in a hanging file system
    return [found[name] for name in checks]


def answer(checks, here, pipe):
    """Run checks, write their findings to the pipe, and exit."""
    try:
        os.setsid()  # so that commands of the checks can be ended with it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTIONS)
        for name, check in checks.items():
            try:
                found = check(here)
            except (LaunchError, OSError) as error:  # such as a switch that is neither 0 nor 1
                found = fail(str(error))
            except Exception as error:
                found = fail(f"{type(error).__name__}: {error}", BROKEN)
            os.write(pipe, (json.dumps(found._replace(check=name)) + "\n").encode())
    finally:
        os._exit(0)  # the rest of the program is for the parent only


def as_table(node, findings, faults_only=False):
    """One line for each check, below it the remedy if there is one, and a last line with the counts."""
    width = max(len("check"), *(len(finding.check) for finding in findings))
    lines = [] if faults_only else [f"{'check':{width}}  verdict  finding"]
    for row in select_faults(findings) if faults_only else findings:
        lines.append(f"{row.check:{width}}  {row.verdict:7}  {row.finding}")
        lines += [f"{'':{width}}           -> {row.remedy}"] * bool(row.remedy)
    verdicts = Counter(finding.verdict for finding in findings)
    counts = [f"{verdicts[name]} {name}" for name in (OK, NOT_APPLICABLE, WARN, FAIL) if verdicts[name]]
    summary = f"{node}: {', '.join(counts)}"
    # of faults, many nodes write to one output
    text = [summary, *(f"{node}: {line}" for line in lines)] if faults_only else [*lines, summary]
    return "\n".join(text) + "\n"


def as_json(node, findings, faults_only=False):
    verdicts = {finding.verdict for finding in findings}
    worst = next((verdict for verdict in (FAIL, WARN) if verdict in verdicts), OK)
    shown = select_faults(findings) if faults_only else findings
    return json.dumps({"node": node, "verdict": worst, "checks": [one._asdict() for one in shown]}) + "\n"


def select_faults(findings):
    return [finding for finding in findings if finding.verdict in (WARN, FAIL)]
