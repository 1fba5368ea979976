# SPDX-License-Identifier: BSD-3-Clause
"""Reads options and environment, runs the checks in parallel, and prints their findings."""

import argparse
import errno
import os
import platform
import signal
import sys

from pytorch_launch.launchers.variables import is_first_task_of_node, node_name

from pytorch_doctor import FAIL
from pytorch_doctor.checks import caches, device, fabric, home, image, module, network, slurm, versions
from pytorch_doctor.checks import torch as torch_check
from pytorch_doctor.context import Context
from pytorch_doctor.deadline import INTERRUPTIONS, run_all
from pytorch_doctor.report import as_json, as_table

# Each group is a separate process; the checks of one group share the facts about torch.
GROUPS = (
    (("module", module.check),),
    (("image", image.check),),
    (
        ("torch", torch_check.check),
        ("gpu", device.check_gpu),
        ("driver", device.check_driver),
        ("network", network.check),
        ("versions", versions.check),
    ),
    (("interfaces", network.check_interfaces),),
    (("fabric", fabric.check),),
    (("caches", caches.check),),
    (("slurm", slurm.check),),
    (("home", home.check),),
)
NAMES = [name for group in GROUPS for name, _ in group]

EPILOG = """\
Verdicts: ok; warn: training works, but with a fault; FAIL: training does not work; n.a.: nothing to check here.
The exit status is 1 if a check fails. To check a compute node, run it in a job: srun pytorch-doctor
"""


def main(arguments):
    """Check, print, and return the exit status."""
    is_open = _reserve_standard_descriptors()
    options = parse(arguments)
    if not is_first_task_of_node(os.environ):
        return 0  # the first task reports for its node
    here = Context(os.environ, full=options.full)
    selected = [[(name, check) for name, check in group if name in options.only] for group in GROUPS]
    seconds = options.timeout * (30 if options.full else 1)
    for number in INTERRUPTIONS:
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # which also ends the checks
    try:
        findings = run_all([group for group in selected if group], here, seconds)
    except OSError as error:  # of fork or pipe
        return _fail(f"cannot start the checks: {error.strerror}. Raise the limits of this shell (ulimit -a)")
    node = node_name(os.environ, platform.node())
    show = as_json if options.json else as_table
    text = show(node, findings, faults_only=options.faults)
    return _print(text, is_open) or int(any(finding.verdict == FAIL for finding in findings))


def _print(text, is_open):
    """Print `text`; return 0, or the exit status if standard output is not open or fails."""
    try:
        if not is_open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        with open(1, "wb", closefd=False) as output:
            output.write(text.encode(errors="surrogateescape"))
    except BrokenPipeError:  # such as `pytorch-doctor | head`
        return 1
    except OSError as error:
        return _fail(f"cannot write to standard output: {error.strerror}. Check where it is redirected to")
    return 0


def _fail(sentence):
    """Print an error of the doctor itself; return its exit status."""
    if sys.stderr:
        sys.stderr.write(f"pytorch-doctor: {sentence}\n")
    return 1


def _reserve_standard_descriptors():
    """Open those of 0, 1 and 2 that are closed, as pipes would get them; return whether standard output was open."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    return sys.stdout is not None


def parse(arguments):
    """The options."""
    parser = argparse.ArgumentParser(
        prog="pytorch-doctor",
        description="Checks the loaded PyTorch module, this node and this job, and reports faults and their remedies.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--full", action="store_true", help="read the image and compare its SHA-256")
    parser.add_argument("--faults", action="store_true", help="print only warnings and failures, and the counts")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument(
        "--only", type=names, default=NAMES, metavar="CHECK,...", help="of: " + ", ".join(NAMES) + " (default: all)"
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=180,
        metavar="S",
        help="seconds for all checks, which run in parallel; 30 times as many with --full (default: %(default)s)",
    )
    return parser.parse_args(arguments)


def names(text):
    """A list of checks."""
    unknown = [name for name in text.split(",") if name not in NAMES]
    if unknown:
        raise argparse.ArgumentTypeError("unknown check " + ", ".join(unknown))
    return text.split(",")


def seconds(text):
    """A number of seconds."""
    if not text.isdecimal() or len(text) > 6 or int(text) == 0:  # more overflow the kernel's clocks
        raise argparse.ArgumentTypeError(text[:20] + " is not a number of seconds from 1 to 999999")
    return int(text)
