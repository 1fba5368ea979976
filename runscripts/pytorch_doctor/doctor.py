"""The edge: reads options and environment, runs the checks side by side, and prints their findings."""

import argparse
import os
import platform
import signal
import sys

from pytorch_doctor import FAIL
from pytorch_doctor.checks import caches, dataset, device, home, image, module, network, slurm
from pytorch_doctor.checks import torch as torch_check
from pytorch_doctor.deadline import INTERRUPTIONS, run_all
from pytorch_doctor.report import as_json, as_table
from pytorch_doctor.surroundings import Surroundings

# Each group is a process of its own; the checks within one share what they have found out about torch.
GROUPS = (
    (("module", module.check),),
    (("image", image.check),),
    (
        ("torch", torch_check.check),
        ("gpu", device.check_gpu),
        ("driver", device.check_driver),
        ("network", network.check),
    ),
    (("interfaces", network.check_interfaces),),
    (("caches", caches.check),),
    (("dataset", dataset.check),),
    (("slurm", slurm.check),),
    (("home", home.check),),
)
NAMES = [name for group in GROUPS for name, _ in group]

EPILOG = """\
Verdicts: ok; warn: training works, but not as it should; FAIL: it does not; n.a.: there is nothing to check here.
The exit status is 1 if a check fails. What a compute node has is checked in a job: srun pytorch-doctor
"""


def main(arguments):
    """Check, print, and return the exit status."""
    options = parse(arguments)
    if os.environ.get("SLURM_STEP_ID") and os.environ.get("SLURM_LOCALID", "0") != "0":
        return 0  # the first task of a node speaks for it
    here = Surroundings(os.environ, full=options.full)
    wanted = [[(name, check) for name, check in group if name in options.only] for group in GROUPS]
    seconds = options.timeout * (30 if options.full else 1)
    for number in INTERRUPTIONS:
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # and the checks end too
    findings = run_all([group for group in wanted if group], here, seconds)
    node = os.environ.get("SLURMD_NODENAME") or platform.node()
    show = as_json if options.json else as_table
    sys.stdout.write(show(node, findings, faults_only=options.faults))
    return 1 if any(finding.verdict == FAIL for finding in findings) else 0


def parse(arguments):
    """The options."""
    parser = argparse.ArgumentParser(
        prog="pytorch-doctor",
        description="Checks the loaded PyTorch module, this node and this job, and says what to do about faults.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--full", action="store_true", help="read the whole image and compare its SHA-256")
    parser.add_argument("--faults", action="store_true", help="print warnings and failures alone, and the sum")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument(
        "--only", type=names, default=NAMES, metavar="CHECK,...", help="of: " + ", ".join(NAMES) + " (default: all)"
    )
    parser.add_argument(
        "--timeout", type=seconds, default=180, metavar="S",
        help="seconds for all checks, which run side by side; 30 times as many with --full (default: %(default)s)",
    )  # fmt: skip
    return parser.parse_args(arguments)


def names(text):
    """A list of checks."""
    unknown = [name for name in text.split(",") if name not in NAMES]
    if unknown:
        raise argparse.ArgumentTypeError("there is no check " + ", ".join(unknown))
    return text.split(",")


def seconds(text):
    """A number of seconds, more than 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(text + " is no number of seconds")
    return int(text)
