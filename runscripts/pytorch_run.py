# SPDX-License-Identifier: BSD-3-Clause
"""Runs a step of srun on some nodes of an allocation, and again without the nodes that failed: `pytorch-run`.

Slurm, srun and pytorch-doctor report which failed. A step without output can be ended and run again, too. It runs on
the host, with any Python from 3.6.
"""

import argparse
import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pytorch_command import Parser, call, positive, print_message, write_all
from pytorch_doctor import FAIL
from pytorch_launch import LaunchError
from pytorch_launch.launchers.allocation import (
    SRUN_FILES,
    beside_step,
    on_nodes,
    outside_of_step,
    slurm_allocation,
)
from pytorch_launch.nodelist import hosts

PROGRAM = "pytorch-run"
HELP = """\
Runs COMMAND with srun on some nodes of this allocation. If a node fails, it runs it again on those that are left:

    salloc --no-kill -N3
    pytorch-run --spare 1 -N2 --ntasks-per-node=2 -- conda-python-distributed train.py
    pytorch-run --silent 30m -- srun -N2 --ntasks-per-node=2 conda-python-distributed train.py

The job needs --no-kill (salloc, sbatch): without it, Slurm ends the job when one of its nodes fails. The program
must resume from its last checkpoint. Its own failure is not repeated. A node has failed if Slurm or srun reports it,
if it does not answer, or if a check of pytorch-doctor fails there. The exit status is that of the last step.
"""
USAGE = "pytorch-run [--spare K] [--retries R] [--silent TIME] [--no-preflight] [options of srun] -- COMMAND ..."
#: After these the program was asked to end, and its end is no failure of a node.
ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
#: Passed on to srun, which passes them on to its tasks; SIGINT is not, as a terminal sends it to srun itself.
SIGNALS = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)
#: A step starts within these seconds: that of a node that failed counts as running until Slurm's SlurmdTimeout, and
#: keeps its resources; and a step may also wait for ever (nebius/soperator, issue 854).
LIMITS = ("--overlap", "--immediate=300")
HERE = Path(__file__).absolute().parent
#: The doctor's checks of a node; the others are of the module and the job.
CHECKS = "disk,gpu,network"
#: For squeue and sinfo; for one check; for a step with all nodes, with srun's 10 s for a node that does not answer.
QUERY_SECONDS = 60
CHECK_SECONDS = 60
STEP_SECONDS = 90

#: For pytorch-stacks; for ranks to end after each signal.
STACKS_SECONDS = 120
END_SECONDS = 30
#: How often silence is counted. Time in which Slurm has suspended the job, and this program with it, does not count.
TICK_SECONDS = 1
#: srun's errors about nodes and tasks are among the last bytes.
ERROR_BYTES = 1 << 20
#: Steps of one node that run side by side, for nodes that did not answer in a step with all.
AT_ONCE = 16
#: States of a node that runs no jobs (sinfo(1), "NODE STATE CODES"), as their first letters, or not responding.
BAD = re.compile(r"down|fail|error|unknown|power|reboot|future|\S*\*")
#: What srun prints about a node that Slurm lost.
NODE_FAILURE = re.compile(r"^srun: error: Node failure on (\S+)", re.MULTILINE)
#: Options of srun(1) without a value behind a blank.
FLAGS = re.compile(
    r"-[EHIKOQZklsuvX]*([^-\dEHIKOQZklsuvX].+|\d*)$|--.*=|--(bcast|compress|contiguous|disable-status|exact|exclusive|"
    "immediate|interactive|kill-on-bad-exit|label|multi-prog|nice|no-allocate|no-kill|overcommit|oversubscribe|overlap|"
    "preserve-env|propagate|pty|quiet|reboot|resv-ports|send-libs|spread-job|test-only|unbuffered|use-min-nodes|"
    "verbose|wait-all-nodes|whole|x11)$"
)
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}

#: The end of a step: its exit status, whether this program was told to end, whether it ended a silent
#: step, and the last of what it wrote to standard error.
Ended = namedtuple("Ended", "status was_told was_silent errors")

#: The state of the job, as RUNNING, and the nodes that it still has; None, None if Slurm does not answer.
Job = namedtuple("Job", "state nodes")


def main(arguments):
    exit_on_signals()
    try:
        return Run(parse(arguments), dict(os.environ)).run()
    except LaunchError as error:
        print_message(PROGRAM, str(error))
        return error.status


def exit_on_signals():
    for number in SIGNALS:
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def parse(arguments):
    """The options, with the other options of srun as `srun` and the command as `command`. Raises LaunchError."""
    parser = Parser(PROGRAM, USAGE, HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--spare", type=int, default=0, metavar="K", help="keep K nodes in reserve (default: those that -N leaves)")
    add("--retries", type=int, default=3, metavar="R", help="run again at most R times (default: %(default)s)")
    text = "end a step whose ranks write nothing for this time, as 30m, show its stacks, and run it again"
    add("--silent", type=seconds, metavar="TIME", help=text)
    add("--no-preflight", action="store_true", help="do not check the nodes before the first run")
    add("-N", "--nodes", type=positive, metavar="N", help="nodes of a run (default: all but --spare)")
    add("-n", "--ntasks", type=positive, metavar="N", help="tasks of a run, on at most as many nodes")
    add("-x", "--exclude", metavar="NODES", help="do not use these nodes")
    add("-w", "--nodelist", help=argparse.SUPPRESS)

    own, command = split_at_srun(arguments)
    options, options.srun = parser.parse_known_args(own)
    options.command = command
    check(parser, options)
    return options


def split_at_srun(arguments):
    """The options before `--`, with those of an `srun` behind it, and the command."""
    end = [*arguments, "--"].index("--")
    options, words = arguments[:end], arguments[end + 1 :]
    if words[:1] != ["srun"]:
        return options, words
    del words[0]
    while words and words[0].startswith("-"):
        options.append(words.pop(0))
        if not FLAGS.match(options[-1]):
            options += words[:1]
            del words[:1]
    return options, words


def seconds(text):
    """A time, as 90, 90s, 30m or 2h, in seconds, for argparse."""
    found = re.match(r"(\d{1,6})([smh]?)$", text)
    if not found or int(found.group(1)) == 0:
        raise argparse.ArgumentTypeError(text[:20] + " is not a time, such as 90s, 30m or 2h")
    return int(found.group(1)) * UNITS[found.group(2)]


def check(parser, options):
    """Exit with an error for options that contradict each other."""
    if min(options.spare, options.retries) < 0:
        parser.error("--spare and --retries are numbers from 0")
    if not options.command:
        parser.error("no command after `--`. Write: pytorch-run [options] -- conda-python-distributed ...")
    if options.nodelist:
        parser.error("-w names nodes, but pytorch-run chooses them. Omit -w, or leave nodes out with -x")
    to_files = [option for option in options.srun if re.match("-[EHIKOQZklsuvX]*[oe]|--(ou|er)", option)]
    to_files += [name for name in SRUN_FILES if os.environ.get(name)]
    if options.silent and to_files:
        parser.error(
            f"--silent sees no output that srun writes to files. Omit {to_files[0]}; redirect pytorch-run's own"
        )


class Run:
    """The steps of `options` in the allocation that `env` describes. Raises LaunchError.

    `nodes`   those that have not failed, in the order of their use; `failed` those that have
    `wanted`  the number of nodes of a step, and `tasks` the options of srun for its tasks, as srun has them by default
    """

    def __init__(self, options, env):
        self.options = options
        self.env = env
        self.failed = []
        self.allocation = slurm_allocation(env)
        job = read_job(self.allocation.job)
        if job.state is None:
            fault = f"job {self.allocation.job} has ended, or Slurm does not answer"
            raise LaunchError(fault, "run it in a running job: squeue --me")
        excluded = hosts(options.exclude) if options.exclude else []
        self.nodes = [node for node in job.nodes if node not in excluded]
        self.wanted = self.choose_size(len(self.nodes))
        self.tasks = self.choose_tasks()
        states = node_states(job.nodes)
        self.drained = [node for node in states if states[node].startswith("drain")]
        self.leave_out(lost_nodes(self.nodes, None, self.drained))

    def choose_size(self, available):
        """The number of nodes of a step: as srun does, tasks have at most as many nodes."""
        spare = self.options.spare
        wanted = min(self.options.nodes or available - spare, self.options.ntasks or available)
        if wanted < 1 or wanted + spare > available:
            least = max(wanted, 1)
            fault = f"-N{least} and --spare {spare} need {least + spare} nodes, and the allocation has {available}"
            raise LaunchError(fault, f"request more: salloc --no-kill -N{least + spare}")
        return wanted

    def choose_tasks(self):
        total = self.allocation.tasks
        nodes = self.allocation.nodes
        if self.options.ntasks:
            return [f"--ntasks={self.options.ntasks}"]
        if not total or not nodes or any(option.startswith("--ntasks-per-") for option in self.options.srun):
            return []
        if self.allocation.is_in_step or (total % nodes and self.wanted != nodes):
            of = f"{nodes} nodes"
            if self.allocation.is_in_step:
                of = "another step"
            fault = f"the job's {total} tasks are of {of}, and a run has {self.wanted} nodes"
            raise LaunchError(fault, "name its tasks: --ntasks-per-node=...")
        return [f"--ntasks={total * self.wanted // nodes}"]

    def leave_out(self, failed):
        for node, reason in failed.items():
            if node in self.nodes:
                self.nodes.remove(node)
                self.failed.append(node)
                print_message(PROGRAM, f"{node} failed: {reason}")

    def shortage(self):
        """Why no step can start, None if it can."""
        if len(self.nodes) >= self.wanted:
            return None
        failed = ",".join(self.failed)
        return (
            f"No spare node is left: {len(self.nodes)} of the {self.wanted} nodes that it needs, as {failed} failed. "
            f"Submit again with a larger -N, and with --exclude={failed}"
        )

    def check_first(self):
        """Leave out the nodes that fail a check before the first run. Raises LaunchError if too few are left."""
        if not self.options.no_preflight and not self.shortage():
            self.leave_out(check_nodes(self.nodes, self.allocation.job))
            print_message(PROGRAM, f"{len(self.nodes)} nodes passed the check")
        if self.shortage():
            raise LaunchError(self.shortage(), status=1)

    def run(self):
        """Run steps; return the exit status of the last one."""
        self.check_first()
        attempt = 0
        while True:
            attempt += 1
            nodes = self.nodes[: self.wanted]
            print_message(PROGRAM, f"run {attempt} on {','.join(nodes)}, {len(self.nodes) - len(nodes)} spare")
            ended = self.step(nodes)
            if ended.was_told:
                return ended.status
            job = read_job(self.allocation.job)
            lost = lost_nodes(nodes, job.nodes, self.drained)
            if ended.status == 0 and not lost and not ended.was_silent:
                return 0
            status = ended.status or 1  # srun returns 0 if all ranks that did not end with 0 were on nodes that failed
            why = f"; the job is {job.state}"
            if job.state in (None, "RUNNING"):
                why = self.find_end(attempt, nodes, ended, lost)
            if why:
                print_message(PROGRAM, f"run {attempt} exited with status {status}{why}")
                return status

    def find_end(self, attempt, nodes, ended, lost):
        """Why a step that failed is not repeated, None if it is; nodes that failed are left out."""
        self.leave_out(failed_nodes(ended.errors))
        self.leave_out(lost)
        if not self.shortage():
            try:
                self.leave_out(check_nodes(self.nodes, self.allocation.job))
            except LaunchError as error:
                print_message(PROGRAM, error.fault)
        if not ended.was_silent and not set(nodes) & set(self.failed):
            return ", and no node failed: not repeated"
        if self.shortage():
            return f". {self.shortage()}"
        if attempt > self.options.retries:
            return f", the last of --retries {self.options.retries}"
        return None

    def step(self, nodes):
        """Run a step on these nodes; return its Ended."""
        command = ["srun", *LIMITS, *self.options.srun, *on_nodes(nodes), *self.tasks, *self.options.command]
        step = Step(command, outside_of_step(self.env, self.allocation), self.options.silent, self.allocation.job)
        ended = step.pass_output()
        exit_on_signals()
        return ended


class Step:
    """A running step of srun, which this program passes signals to and output from, and ends if it is silent.

    `silent`  the seconds without output after which it is ended, or None; `job` for pytorch-stacks
    """

    def __init__(self, command, env, silent, job):
        self.silent = silent
        self.job = job
        self.received = []
        self.errors = b""
        #: With the second signal, srun ends tasks that ignore the first one. The third is for srun itself.
        self.to_send = [signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL]
        self.process = None
        for number in SIGNALS:
            signal.signal(number, self.pass_on)
        stdout = None
        if silent:
            stdout = subprocess.PIPE
            # otherwise srun keeps a line until its end: that of a progress bar, for hours
            env = dict(env, SLURM_UNBUFFEREDIO="1")
        self.process = subprocess.Popen(command, env=env, stdout=stdout, stderr=subprocess.PIPE)
        for number in self.received:  # before srun was there
            self.process.send_signal(number)

    def pass_on(self, number, _):
        self.received.append(number)
        if self.process and number != signal.SIGINT:
            self.process.send_signal(number)

    def pass_output(self):
        """Pass on what srun writes, as it comes, until its end; return the Ended."""
        targets = {self.process.stderr: 2}
        tick = None
        if self.silent:
            targets[self.process.stdout] = 1
            tick = TICK_SECONDS
        quiet = 0
        while targets:
            ready = select.select(list(targets), [], [], tick)[0]
            quiet += TICK_SECONDS
            for source in ready:
                quiet = 0
                if not self.copy(source.fileno(), targets[source]):
                    del targets[source]
            if self.silent and quiet >= self.silent and self.to_send:
                self.end()
                quiet = 0
        status = self.process.wait()
        if status < 0:
            status = 128 - status
        was_told = any(number in ENDING for number in self.received)
        return Ended(status, was_told, signal.SIGTERM not in self.to_send, self.errors.decode(errors="replace"))

    def copy(self, source, target):
        """Copy what can be read, and return it: nothing at the end."""
        data = os.read(source, 65536)
        write_all(target, data)
        if target == 2:
            self.errors = (self.errors + data)[-ERROR_BYTES:]
        return data

    def end(self):
        """Send the next signal that ends the step; before the first, print what pytorch-stacks sees."""
        if signal.SIGTERM in self.to_send:
            print_message(PROGRAM, f"no output for {self.silent} s: the stacks of the ranks, then the step is ended")
            _, text, errors = call([str(HERE / "pytorch-stacks"), self.job], STACKS_SECONDS)
            write_all(2, (text + errors).encode(errors="replace"))
            self.silent = END_SECONDS
        self.process.send_signal(self.to_send.pop(0))


def query(*command):
    """The rows that a command of Slurm prints, split at `|`; none if it fails."""
    lines = call(command, QUERY_SECONDS)[1].splitlines()
    return [[word.strip() for word in line.split("|", 2)] for line in lines if line.count("|") >= 2]


def read_job(job):
    """The state of the job, as RUNNING, and the nodes that it still has; None, None if Slurm does not answer.

    squeue prints all elements of an array for the one that has the array's number.
    """
    rows = query("squeue", "--noheader", f"--jobs={job}", "--format=%A|%T|%N")
    for number, state, nodes in rows:
        if number == job:
            return Job(state, hosts(nodes) if nodes else [])
    return Job(None, None)


def node_states(nodes):
    """The state of each node that Slurm reports, with the reason that the administrator gave."""
    states = {}
    for node, state, why in query("sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%N|%T|%E"):
        states[node] = state
        if why.lower() not in ("", "none"):
            states[node] += f" ({why})"
    return states


def lost_nodes(nodes, in_job, drained):
    """The nodes that Slurm reports as failed, each with the reason; `in_job` has those of the job, None if unknown.

    srun knows no status of a rank on such a node, and returns 0 if all others did (Slurm 22.05): a step with one is not
    complete, whatever its status. `drained` has the nodes that the site had taken out of service before.
    """
    failed = {}
    states = node_states(nodes)
    for node in nodes:
        state = states.get(node, "")
        if BAD.match(state) or (state.startswith("drain") and node not in drained):
            failed[node] = f"Slurm reports {state}"
        elif in_job is not None and node not in in_job:
            failed[node] = "Slurm removed it from the job"
    return failed


def failed_nodes(errors):
    """The nodes that srun reports as failed in its `errors`, each with the reason."""
    found = {}
    for nodes in NODE_FAILURE.findall(errors):
        found.update(dict.fromkeys(hosts(nodes), "srun: Node failure"))
    return found


def check_nodes(nodes, job):
    """The nodes that fail pytorch-doctor's checks or do not answer, each with the reason.

    Checks that fail on all nodes are reported alone. Raises LaunchError if no node answers: it is not the nodes.
    """
    answers, _ = ask(nodes, job)
    failed = {}
    silent = [node for node in nodes if node not in answers]
    with ThreadPoolExecutor(AT_ONCE) as pool:  # a node that does not answer ends the step on the others
        for node, (answer, reason) in zip(silent, pool.map(lambda node: ask([node], job), silent)):
            answers.update(answer)
            if not answer:
                failed[node] = reason
    if not answers:
        raise LaunchError(f"no node answers pytorch-doctor: {nodes[0]}: {failed[nodes[0]]}", "omit it: --no-preflight")
    common = find_common(list(answers.values()))
    for node, found in answers.items():
        own = [f"pytorch-doctor: {check}: {found[check]}" for check in found if check not in common]
        if own:
            failed[node] = own[0]
    return failed


def find_common(answers):
    """The checks that fail on all of several nodes, which are printed; a finding is the first node's."""
    if len(answers) == 1:
        return []
    common = [check for check in answers[0] if all(check in found for found in answers)]
    for check in common:
        print_message(PROGRAM, f"all nodes: pytorch-doctor: {check}: {answers[0][check]}")
    return common


def ask(nodes, job):
    """The failed checks of each node that answers, check to finding, and why another one does not."""
    doctor = [str(HERE / "pytorch-doctor"), "--json", f"--timeout={CHECK_SECONDS}", f"--only={CHECKS}"]
    step = ["srun", *beside_step(job, nodes), "--time=3", *doctor]
    text = call(step, STEP_SECONDS, stderr=subprocess.STDOUT)[1]
    checks = {}
    reason = f"no answer within {STEP_SECONDS} s"
    for line in text.splitlines():
        if line.startswith("srun: error: ") and not reason.startswith("srun"):
            reason = line.replace("error: ", "", 1)
        if line.startswith("{"):
            with contextlib.suppress(ValueError):  # a line that is cut
                found = json.loads(line)
                failed = [row for row in found["checks"] if row["verdict"] == FAIL]
                checks[found["node"]] = {row["check"]: row["finding"] for row in failed}
    return {node: checks[node] for node in nodes if node in checks}, reason
