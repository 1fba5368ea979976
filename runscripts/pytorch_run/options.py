# SPDX-License-Identifier: BSD-3-Clause
"""The command line of pytorch-run: its own options, those of srun, and the command.

>>> parse(["--spare", "1", "-N2", "--cpus-per-task=2", "--", "hostname"]).srun
['--cpus-per-task=2']
"""

import argparse
import re

from pytorch_launch import LaunchError

HELP = """\
Runs COMMAND with srun on some nodes of this allocation. If a node fails, it runs it again on those that are left:

    salloc --no-kill -N3
    pytorch-run --spare 1 -N2 --ntasks-per-node=2 -- conda-python-distributed train.py

The job needs --no-kill (salloc, sbatch): without it, Slurm ends the job when one of its nodes fails. The program
must resume from its last checkpoint. Its own failure is not repeated. A node has failed if Slurm reports it, if srun
reports that its tasks were killed and those of other nodes were terminated, if it does not answer, or if a check of
pytorch-doctor fails there. The exit status is that of the last step.
"""
USAGE = "pytorch-run [--spare K] [--retries R] [--min-nodes M] [--no-preflight] [options of srun] -- COMMAND ..."
#: --nnodes=M:N of torchrun-distributed.
ELASTIC = re.compile(r"(?:^|.*[/ ])torchrun-distributed (?:.* )?--nnodes[= ](\d+):")


class OptionError(LaunchError):
    """A command line that cannot be run."""

    def __init__(self, fault, remedy="see pytorch-run --help"):
        super().__init__(fault, remedy)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are of one line."""

    def error(self, message):
        raise OptionError(message)


def parse(arguments):
    """The options, with the other options of srun as `srun` and the command as `command`. Raises OptionError."""
    parser = Parser("pytorch-run", USAGE, HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--spare", type=int, default=0, metavar="K", help="keep K nodes in reserve (default: those that -N leaves)")
    add("--retries", type=int, default=3, metavar="R", help="run again at most R times (default: %(default)s)")
    text = "continue on M nodes at least (default: -N, or M of torchrun-distributed --nnodes=M:N)"
    add("--min-nodes", type=int, metavar="M", help=text)
    add("--no-preflight", action="store_true", help="do not check the nodes before the first run")
    add("-N", "--nodes", type=int, metavar="N", help="nodes of a run (default: all but --spare)")
    add("-n", "--ntasks", type=int, metavar="N", help="tasks of a run, on at most as many nodes")
    add("-x", "--exclude", metavar="NODES", help="do not use these nodes")
    add("-w", "--nodelist", help=argparse.SUPPRESS)
    add("--het-group", default="0", metavar="K", help="component of a heterogeneous job (default: %(default)s)")
    if "--" not in arguments:
        parser.parse_known_args(arguments)  # for --help
        raise OptionError("no `--` before the command", "write: pytorch-run [options] -- conda-python-distributed ...")
    end = arguments.index("--")
    options, options.srun = parser.parse_known_args(arguments[:end])
    options.command = arguments[end + 1 :]
    for name, least in (("spare", 0), ("retries", 0), ("nodes", 1), ("ntasks", 1), ("min_nodes", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise OptionError(f"--{name.replace('_', '-')}={value} is not a number from {least}")
    if not options.command:
        raise OptionError("no command after `--`")
    if options.nodelist:
        raise OptionError("-w names nodes, but pytorch-run chooses them", "omit -w, or leave nodes out with -x")
    elastic = ELASTIC.match(" ".join(options.command))
    if options.min_nodes is None and elastic:
        options.min_nodes = int(elastic.group(1))
    return options
