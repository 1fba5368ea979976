# SPDX-License-Identifier: BSD-3-Clause
"""Checks the nodes of the allocation, and runs steps until one is complete or too few nodes are left."""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import time

from pytorch_command import print_message
from pytorch_launch import LaunchError
from pytorch_launch.nodelist import hosts

from pytorch_run.nodes import PROGRAM, check_nodes, find_job, job_state, killed_nodes, lost_nodes, node_states

HELP = """\
Runs COMMAND with srun on some nodes of this allocation. If a node fails, it runs it again on those that are left:

    salloc --no-kill -N3
    pytorch-run --spare 1 -N2 --ntasks-per-node=2 -- conda-python-distributed train.py

The job needs --no-kill (salloc, sbatch): without it, Slurm ends the job when one of its nodes fails. The program
must resume from its last checkpoint. Its own failure is not repeated. A node has failed if Slurm reports it, if srun
reports that its tasks were killed and those of other nodes were terminated, if it does not answer, or if a check of
pytorch-doctor fails there. The exit status is that of the last step.
"""
USAGE = "pytorch-run [--spare K] [--retries R] [--no-preflight] [options of srun] -- COMMAND ..."
#: After these the program was asked to end, and its end is no failure of a node.
ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
#: Passed on to srun, which passes them on to its tasks. A terminal sends SIGINT to srun itself.
PASSED = (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
#: Variables that srun(1) reads as --ntasks; and those of a step around this program, by their first letters.
SIZES = re.compile("SLURM_(NTASKS|NPROCS)$")
OF_STEP = re.compile("SLURM_(STEP|CPU_BIND|MEM_BIND|(NTASKS|NPROCS|NNODES|DISTRIBUTION)$)")
#: A step after a failure starts within these seconds: the step of a node that failed counts as running until Slurm's
#: SlurmdTimeout, and keeps its resources; and a step may also wait for ever (nebius/soperator, issue 854).
LATER = ("--overlap", "--immediate=300")
SHOWN_NODES = 8


def main(arguments):
    for number in PASSED:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        return Run(parse(arguments), dict(os.environ)).run()
    except LaunchError as error:
        print_message(PROGRAM, str(error))
        return error.status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


class Parser(argparse.ArgumentParser):
    """A parser whose errors are of one line."""

    def error(self, message):
        raise LaunchError(message, "see pytorch-run --help")


def parse(arguments):
    """The options, with the other options of srun as `srun` and the command as `command`. Raises LaunchError.

    >>> parse(["--spare", "1", "-N2", "--cpus-per-task=2", "--", "hostname"]).srun
    ['--cpus-per-task=2']
    """
    parser = Parser(PROGRAM, USAGE, HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--spare", type=int, default=0, metavar="K", help="keep K nodes in reserve (default: those that -N leaves)")
    add("--retries", type=int, default=3, metavar="R", help="run again at most R times (default: %(default)s)")
    add("--no-preflight", action="store_true", help="do not check the nodes before the first run")
    add("-N", "--nodes", type=int, metavar="N", help="nodes of a run (default: all but --spare)")
    add("-n", "--ntasks", type=int, metavar="N", help="tasks of a run, on at most as many nodes")
    add("-x", "--exclude", metavar="NODES", help="do not use these nodes")
    add("-w", "--nodelist", help=argparse.SUPPRESS)
    add("--het-group", default="0", metavar="K", help="component of a heterogeneous job (default: %(default)s)")
    end = [*arguments, "--"].index("--")
    options, options.srun = parser.parse_known_args(arguments[:end])
    options.command = arguments[end + 1 :]
    for name, least in (("spare", 0), ("retries", 0), ("nodes", 1), ("ntasks", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            parser.error(f"--{name.replace('_', '-')}={value} is not a number from {least}")
    if not options.command:
        raise LaunchError("no command after `--`", "write: pytorch-run [options] -- conda-python-distributed ...")
    if options.nodelist:
        raise LaunchError("-w names nodes, but pytorch-run chooses them", "omit -w, or leave nodes out with -x")
    return options


class Run:
    """The steps of `options` in the allocation that `env` describes. Raises LaunchError.

    `nodes`   those that have not failed, in the order of their use; `failed` those that have
    `wanted`  the number of nodes of a step; `tasks` the options of srun for its tasks, as srun has them by default
    """

    def __init__(self, options, env):
        self.options, self.env, self.failed = options, env, []
        # batch scripts and the interactive step of salloc have the variables of the job; their numbers are the largest,
        # or negative (Slurm 26.05)
        step = env.get("SLURM_STEP_ID", "")
        self.is_in_step = step.isdecimal() and len(step) < 10
        self.job = find_job(env, options.het_group)
        state, nodes = job_state(self.job)
        if state is None:
            fault = f"job {self.job.number} has ended, or Slurm does not answer: SLURM_JOB_ID={env['SLURM_JOB_ID']}"
            raise LaunchError(fault, "run it in a running job: squeue --me")
        excluded = set(hosts(options.exclude)) if options.exclude else set()
        self.nodes = [node for node in nodes if node not in excluded]
        available, spare = len(self.nodes), options.spare
        # as srun does, tasks have at most as many nodes
        self.wanted = min(options.nodes or available - spare, options.ntasks or available)
        if self.wanted < 1 or self.wanted + spare > available:
            needed = f"-N{self.wanted} and --spare {spare}" if options.nodes else f"--spare {spare}"
            total = max(self.wanted, 1) + spare
            fault = f"{needed} need {total} nodes, and the allocation has {available}"
            raise LaunchError(fault, f"request more: salloc --no-kill -N{total}")
        self.tasks = self.choose_tasks()
        states = node_states(self.nodes)
        # those that the site takes out of service are the last to be used
        self.drained = [node for node in self.nodes if states.get(node, ("",))[0].startswith("drain")]
        self.nodes.sort(key=self.drained.__contains__)
        self.leave_out(lost_nodes(self.nodes, None, states, self.nodes))

    def choose_tasks(self):
        count, total, nodes = self.wanted, self.job.tasks, self.job.nodes
        if self.options.ntasks:
            return [f"--ntasks={self.options.ntasks}"]
        if not total or not nodes or any(option.startswith("--ntasks-per-") for option in self.options.srun):
            return []
        fault = f"the job has {total} tasks on {nodes} nodes, and a step has {count} nodes"
        if self.is_in_step:
            fault = f"SLURM_NTASKS={total} is of step {self.env['SLURM_STEP_ID']}, and not of the job"
        if self.is_in_step or (total % nodes and count != nodes):
            raise LaunchError(fault, "name the tasks: --ntasks-per-node=...")
        return [f"--ntasks={total * count // nodes}"]

    def leave_out(self, failed):
        for node, reason in failed.items():
            if node in self.nodes:
                self.nodes.remove(node)
                self.failed.append(node)
                print_message(PROGRAM, f"{node} failed: {reason}")

    def shortage(self):
        if len(self.nodes) >= self.wanted:
            return None
        return (
            f"No spare node is left: {len(self.nodes)} of the {self.wanted} nodes that it needs, as "
            f"{','.join(self.failed)} failed. Submit again with a larger -N, and with --exclude={','.join(self.failed)}"
        )

    def run(self):
        """Run steps; return the exit status of the last one."""
        if not self.options.no_preflight and self.nodes:
            start = time.monotonic()
            self.leave_out(check_nodes(self.nodes, self.job))
            print_message(PROGRAM, f"{len(self.nodes)} nodes checked in {time.monotonic() - start:.0f} s")
        if self.shortage():
            print_message(PROGRAM, self.shortage())
            return 1
        attempt = 0
        while True:
            nodes = self.nodes[: self.wanted]
            shown = ",".join(nodes) if len(nodes) <= SHOWN_NODES else f"{len(nodes)} nodes"
            print_message(PROGRAM, f"run {attempt + 1} on {shown}, {len(self.nodes) - len(nodes)} spare")
            status, is_ended, lines = self.step(nodes, LATER if attempt else LATER[:1] * self.is_in_step)
            if is_ended:
                return status
            state, in_job = job_state(self.job)
            lost = lost_nodes(nodes, in_job, node_states(nodes), self.drained)
            if status == 0 and not lost:
                return 0
            status = status or 1  # srun returns 0 if all ranks that did not end with 0 were on nodes that failed
            if state in (None, "RUNNING"):
                self.leave_out({**killed_nodes(lines), **lost})
                try:
                    self.leave_out(check_nodes(self.nodes, self.job))
                except LaunchError as error:
                    print_message(PROGRAM, error.fault)
                why = None if set(nodes) & set(self.failed) else ", and no node failed: not repeated"
                why = why or (self.shortage() and f". {self.shortage()}")
            else:
                why = f"; the job is {state}"
            if why or attempt == self.options.retries:
                why = why or f", the last of --retries {attempt}"
                print_message(PROGRAM, f"run {attempt + 1} exited with status {status}{why}")
                return status
            attempt += 1

    def step(self, nodes, later):
        """Run a step; return its exit status, whether this program was told to end, and srun's messages."""
        where = [*self.job.where[1:], f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}"]
        command = ["srun", *later, *self.options.srun, *where, *self.tasks, *self.options.command]
        left = OF_STEP if self.is_in_step else SIZES
        env = {name: text for name, text in self.env.items() if not left.match(name)}
        received, missed, process = [], [], None

        def pass_on(number, _):
            received.append(number)
            if process is None:
                missed.append(number)
            elif number != signal.SIGINT:
                process.send_signal(number)

        before = {number: signal.signal(number, pass_on) for number in {*PASSED, *ENDING}}
        try:
            process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE)
            for number in missed:  # before srun was there
                process.send_signal(number)
            lines = copy(process.stderr.fileno())
            status = process.wait()
        except OSError as error:
            raise LaunchError(f"cannot start srun: {error.strerror}") from error
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return 128 - status if status < 0 else status, any(number in ENDING for number in received), lines


def copy(source):
    """Copy `source` to standard error until its end; return the lines of srun's errors."""
    lines, rest = [], b""
    for data in iter(lambda: os.read(source, 65536), b""):
        left = data
        with contextlib.suppress(OSError):  # the step goes on; nothing stays in a buffer, which would fail at exit
            while left:
                left = left[os.write(2, left) :]
        *complete, rest = (rest + data).split(b"\n")
        rest = rest[-4096:]
        lines += [line.decode(errors="replace") for line in complete if line.startswith(b"srun: error: ")]
    return lines
