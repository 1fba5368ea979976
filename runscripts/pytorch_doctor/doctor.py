"""The edge: reads options and environment, runs the checks side by side, and prints their findings."""

import argparse
import errno
import os
import platform
import signal
import sys

from pytorch_launch.launchers.variables import is_first_task_of_node, node_name

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
    is_open = _reserve_standard_descriptors()
    options = parse(arguments)
    if not is_first_task_of_node(os.environ):
        return 0  # the first task reports for its node
    here = Surroundings(os.environ, full=options.full)
    wanted = [[(name, check) for name, check in group if name in options.only] for group in GROUPS]
    seconds = options.timeout * (30 if options.full else 1)
    for number in INTERRUPTIONS:
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # and the checks end too
    try:
        findings = run_all([group for group in wanted if group], here, seconds)
    except OSError as error:  # of fork or pipe
        return _fail(f"the checks cannot be started: {error.strerror}. Raise the limits of this shell (ulimit -a).")
    node = node_name(os.environ, platform.node())
    show = as_json if options.json else as_table
    text = show(node, findings, faults_only=options.faults)
    try:
        if not is_open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        with open(1, "wb", closefd=False) as output:
            output.write(text.encode(errors="surrogateescape"))
    except BrokenPipeError:  # the reader has had enough
        return 1
    except OSError as error:
        return _fail(f"standard output cannot be written: {error.strerror}. See where it is redirected to.")
    return 1 if any(finding.verdict == FAIL for finding in findings) else 0


def _fail(sentence):
    """Report what keeps the doctor from working; return its exit status."""
    if sys.stderr:
        sys.stderr.write(f"pytorch-doctor: {sentence}\n")
    return 1


def _reserve_standard_descriptors():
    """Open what is closed of 0, 1 and 2, or pipes would get these numbers; return whether standard output was open."""
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
    """A number of seconds."""
    if not text.isdecimal() or len(text) > 6 or int(text) == 0:  # more overflow the kernel's clocks
        raise argparse.ArgumentTypeError(text[:20] + " is no number of seconds between 1 and 999999")
    return int(text)
