# SPDX-License-Identifier: BSD-3-Clause
"""Runs the checks in a process with a deadline, as a file system or a command may hang, and prints the findings."""

import argparse
import contextlib
import json
import os
import platform
import select
import signal
import sys
import time
from collections import Counter

from pytorch_command import Parser, positive, write_output
from pytorch_launch import LaunchError, printable
from pytorch_launch.launchers import node_name
from pytorch_launch.launchers.discovery import speaks_for_node

from pytorch_doctor import FAIL, NOT_APPLICABLE, OK, WARN, Finding, fail, not_applicable
from pytorch_doctor.checks import disk, gpu, installation, network
from pytorch_doctor.context import Context

PROGRAM = "pytorch-doctor"
#: The checks, by name.
CHECKS = {
    "disk": disk.check_disk,
    "module": installation.check_module,
    "torch": installation.check_torch,
    "versions": installation.check_versions,
    "gpu": gpu.check_gpu,
    "network": network.check_network,
}
SLOW = "something hangs, such as a file system: try again with a larger --timeout, then ask the site"
BROKEN = "this is a bug of pytorch-doctor: please report this line"
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)

EPILOG = """\
Verdicts: ok; warn: training works, but with a fault; FAIL: training does not work; n.a.: nothing to check here.
The exit status is 1 if a check fails. To check a compute node, run it in a job: srun pytorch-doctor
"""


def main(arguments):
    options = parse(arguments)
    if not speaks_for_node(os.environ):
        return 0
    for number in INTERRUPTIONS:
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # which also ends the checks
    findings = run_all(options.only, Context(os.environ), options.timeout)
    node = node_name(os.environ, platform.node())
    shown = findings
    if options.faults:
        shown = [finding for finding in findings if finding.verdict in (WARN, FAIL)]
    verdicts = [finding.verdict for finding in findings]
    if options.json:
        worst = max(verdicts, key=(NOT_APPLICABLE, OK, WARN, FAIL).index)
        checks = [finding._asdict() for finding in shown]
        text = json.dumps({"node": node, "verdict": worst, "checks": checks}) + "\n"
    else:
        text = as_table(shown, count_verdicts(verdicts), node, faults_only=options.faults)
    return int(write_output(PROGRAM, text) != 0 or FAIL in verdicts)


def parse(arguments):
    parser = Parser(
        prog=PROGRAM,
        description="Checks the loaded PyTorch module, this node and this job, and reports faults and their remedies.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--faults", action="store_true", help="print only warnings and failures, and the counts")
    add("--json", action="store_true", help="print one line of JSON")
    text = f"of: {', '.join(CHECKS)} (default: all)"
    add("--only", type=checks, default=list(CHECKS), metavar="CHECK,...", help=text)
    text = "seconds for all checks (default: %(default)s)"
    add("--timeout", type=positive, default=180, metavar="S", help=text)
    return parser.parse_args(arguments)


def checks(text):
    """The names of checks, for argparse."""
    for name in text.split(","):
        if name not in CHECKS:
            raise argparse.ArgumentTypeError(f"no check {name!r}: the checks are {', '.join(CHECKS)}")
    return [name for name in CHECKS if name in text.split(",")]


def run_all(names, here, seconds):
    """The Findings of the named checks of the Context `here`, in their order; `seconds` is the deadline of all."""
    pipe, writing = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTIONS)  # until what is forked would be ended with this process
    process = os.fork()
    if process == 0:
        answer(names, here, writing)
    os.close(writing)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTIONS)
        text = read_until(pipe, time.monotonic() + seconds)
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(process, signal.SIGKILL)  # not while it is in a file system that hangs
    found = [Finding(*json.loads(line)) for line in text.decode().split("\n")[:-1]]
    missing = names[len(found) :]
    found += [fail(f"no answer within {seconds} s", SLOW, name) for name in missing[:1]]
    return found + [not_applicable("a check before did not answer", check=name) for name in missing[1:]]


def answer(names, here, pipe):
    """Run checks, write their Findings to the pipe, and exit."""
    try:
        os.setsid()  # so that commands of the checks can be ended with it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTIONS)
        for name in names:
            os.write(pipe, (json.dumps(run_check(name, here)) + "\n").encode())
    finally:
        os._exit(0)  # the rest of the program is for the parent only


def read_until(pipe, deadline):
    """What can be read from the pipe before its end or a deadline."""
    text = b""
    while select.select([pipe], [], [], max(0, deadline - time.monotonic()))[0]:
        piece = os.read(pipe, 65536)
        if not piece:
            break
        text += piece
    return text


def run_check(name, here):
    try:
        found = CHECKS[name](here)
    except (LaunchError, OSError) as error:  # such as a switch that is neither 0 nor 1
        found = fail(str(error))
    except Exception as error:
        found = fail(f"{type(error).__name__}: {error}", BROKEN)
    return found._replace(check=name)


def as_table(findings, counts, node, *, faults_only):
    """One line for each check, below it the remedy if there is one, and a line with the counts."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.check:8}  {finding.verdict:7}  {finding.finding}")
        if finding.remedy:
            lines.append(f"                   -> {finding.remedy}")
    if faults_only:  # of many nodes, which write to one output
        lines = [f"{node}: {line}" for line in (counts, *lines)]
    else:
        lines = ["check     verdict  finding", *lines, f"{node}: {counts}"]
    return "".join(printable(line) + "\n" for line in lines)


def count_verdicts(verdicts):
    counts = Counter(verdicts)
    return ", ".join(f"{counts[name]} {name}" for name in (OK, NOT_APPLICABLE, WARN, FAIL) if counts[name])
