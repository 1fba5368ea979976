# SPDX-License-Identifier: BSD-3-Clause
"""Runs a step of srun on some nodes of an allocation, and again without the nodes that failed: `pytorch-run`.

Slurm, srun and pytorch-doctor report which failed. It runs on the host, with any Python from 3.6.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pytorch_command import call, positive, print_message
from pytorch_doctor import FAIL
from pytorch_launch import LaunchError
from pytorch_launch.nodelist import hosts

PROGRAM = "pytorch-run"
HELP = """\
Runs COMMAND with srun on some nodes of this allocation. If a node fails, it runs it again on those that are left:

    salloc --no-kill -N3
    pytorch-run --spare 1 -N2 --ntasks-per-node=2 -- conda-python-distributed train.py

The job needs --no-kill (salloc, sbatch): without it, Slurm ends the job when one of its nodes fails. The program
must resume from its last checkpoint. Its own failure is not repeated. A node has failed if Slurm or srun reports it,
if it does not answer, or if a check of pytorch-doctor fails there. The exit status is that of the last step.
"""
USAGE = "pytorch-run [--spare K] [--retries R] [--no-preflight] [options of srun] -- COMMAND ..."
#: After these the program was asked to end, and its end is no failure of a node.
ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
#: Passed on to srun, which passes them on to its tasks; SIGINT is not, as a terminal sends it to srun itself.
SIGNALS = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)
#: Variables that srun(1) reads as --ntasks; and those of a step around this program, by their first letters.
SIZES = re.compile("SLURM_(NTASKS|NPROCS)$")
OF_STEP = re.compile("SLURM_(STEP|CPU_BIND|MEM_BIND|(NTASKS|NPROCS|NNODES|DISTRIBUTION)$)")
#: A step starts within these seconds: that of a node that failed counts as running until Slurm's SlurmdTimeout, and
#: keeps its resources; and a step may also wait for ever (nebius/soperator, issue 854).
LIMITS = ("--overlap", "--immediate=300")
DOCTOR = str(Path(__file__).absolute().parent / "pytorch-doctor")
#: The doctor's checks of a node; the others are of the module and the job.
CHECKS = "gpu,driver,network,interfaces,fabric,caches"
#: For squeue and sinfo; for one check; for a step with all nodes, with srun's 10 s for a node that does not answer.
QUERY_SECONDS, CHECK_SECONDS, STEP_SECONDS = 60, 60, 90
#: Steps of one node that run side by side, for nodes that did not answer in a step with all.
AT_ONCE = 16
#: States of a node that runs no jobs (sinfo(1), "NODE STATE CODES"), as their first letters, or not responding.
BAD = re.compile(r"down|fail|error|unknown|power|reboot|future|.*\*$")
#: What srun prints about a node that Slurm lost; and about the end of tasks.
NODE_FAILURE = re.compile(r"srun: error: Node failure on (\S+)")
TASKS = re.compile(r"srun: error: ([^\s:]+): tasks? [\d,-]+: (.+)")


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
    """The options, with the other options of srun as `srun` and the command as `command`."""
    parser = argparse.ArgumentParser(PROGRAM, USAGE, HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--spare", type=int, default=0, metavar="K", help="keep K nodes in reserve (default: those that -N leaves)")
    add("--retries", type=int, default=3, metavar="R", help="run again at most R times (default: %(default)s)")
    add("--no-preflight", action="store_true", help="do not check the nodes before the first run")
    add("-N", "--nodes", type=positive, metavar="N", help="nodes of a run (default: all but --spare)")
    add("-n", "--ntasks", type=positive, metavar="N", help="tasks of a run, on at most as many nodes")
    add("-x", "--exclude", metavar="NODES", help="do not use these nodes")
    add("-w", "--nodelist", help=argparse.SUPPRESS)
    add("--het-group", default="0", metavar="K", help="component of a heterogeneous job (default: %(default)s)")
    end = [*arguments, "--"].index("--")
    options, options.srun = parser.parse_known_args(arguments[:end])
    options.command = arguments[end + 1 :]
    if min(options.spare, options.retries) < 0:
        parser.error("--spare and --retries are numbers from 0")
    if not options.command:
        parser.error("no command after `--`. Write: pytorch-run [options] -- conda-python-distributed ...")
    if options.nodelist:
        parser.error("-w names nodes, but pytorch-run chooses them. Omit -w, or leave nodes out with -x")
    return options


class Run:
    """The steps of `options` in the allocation that `env` describes. Raises LaunchError.

    `job`     the number of the job, or of its component, and `where` the options of srun that name it
    `nodes`   those that have not failed, in the order of their use; `failed` those that have
    `wanted`  the number of nodes of a step, and `tasks` the options of srun for its tasks, as srun has them by default
    """

    def __init__(self, options, env):
        self.options, self.env, self.failed = options, env, []
        component = f"_HET_GROUP_{options.het_group}" if env.get("SLURM_HET_SIZE") else ""
        self.job = env.get("SLURM_JOB_ID" + component)
        if not self.job:
            remedy = "run it in `salloc --no-kill`, or in a batch script with #SBATCH --no-kill"
            remedy = "name one component of the job: --het-group=0" if component else remedy
            raise LaunchError(f"not in an allocation of Slurm: SLURM_JOB_ID{component} is not set", remedy)
        self.where = [f"--jobid={env['SLURM_JOB_ID']}", *[f"--het-group={options.het_group}"] * bool(component)]
        # batch scripts and salloc's shell have the job's variables, and the largest or negative numbers as steps
        step = env.get("SLURM_STEP_ID", "")
        self.is_in_step = step.isdecimal() and len(step) < 10
        state, nodes = job_state(self.job)
        if state is None:
            fault = f"job {self.job} has ended, or Slurm does not answer"
            raise LaunchError(fault, "run it in a running job: squeue --me")
        excluded = hosts(options.exclude) if options.exclude else []
        self.nodes = [node for node in nodes if node not in excluded]
        available, spare = len(self.nodes), options.spare
        # as srun does, tasks have at most as many nodes
        self.wanted = min(options.nodes or available - spare, options.ntasks or available)
        if self.wanted < 1 or self.wanted + spare > available:
            least = max(self.wanted, 1)
            fault = f"-N{least} and --spare {spare} need {least + spare} nodes, and the allocation has {available}"
            raise LaunchError(fault, f"request more: salloc --no-kill -N{least + spare}")
        self.tasks = self.choose_tasks(component)
        states = node_states(nodes).items()
        self.drained = [node for node, (state, _) in states if state.startswith("drain")]
        self.leave_out(lost_nodes(self.nodes, None, self.drained))

    def choose_tasks(self, component):
        total, nodes = (int(self.env.get(name + component) or 0) for name in ("SLURM_NTASKS", "SLURM_JOB_NUM_NODES"))
        if self.options.ntasks:
            return [f"--ntasks={self.options.ntasks}"]
        if not total or not nodes or any(option.startswith("--ntasks-per-") for option in self.options.srun):
            return []
        if self.is_in_step or (total % nodes and self.wanted != nodes):
            fault = f"SLURM_NTASKS={total} is of {'another step' if self.is_in_step else f'{nodes} nodes'}"
            raise LaunchError(f"{fault}, and a run has {self.wanted} nodes", "name its tasks: --ntasks-per-node=...")
        return [f"--ntasks={total * self.wanted // nodes}"]

    def leave_out(self, failed):
        for node, reason in failed.items():
            if node in self.nodes:
                self.nodes.remove(node)
                self.failed.append(node)
                print_message(PROGRAM, f"{node} failed: {reason}")

    def shortage(self):
        failed = ",".join(self.failed)
        return len(self.nodes) < self.wanted and (
            f"No spare node is left: {len(self.nodes)} of the {self.wanted} nodes that it needs, as {failed} failed. "
            f"Submit again with a larger -N, and with --exclude={failed}"
        )

    def run(self):
        """Run steps; return the exit status of the last one."""
        if not self.options.no_preflight and not self.shortage():
            self.leave_out(check_nodes(self.nodes, self.where))
            print_message(PROGRAM, f"{len(self.nodes)} nodes passed the check")
        if self.shortage():
            raise LaunchError(self.shortage(), status=1)
        attempt, why = 0, None
        while True:
            attempt += 1
            nodes = self.nodes[: self.wanted]
            print_message(PROGRAM, f"run {attempt} on {','.join(nodes)}, {len(self.nodes) - len(nodes)} spare")
            status, is_ended, lines = self.step(nodes)
            if is_ended:
                return status
            state, in_job = job_state(self.job)
            lost = lost_nodes(nodes, in_job, self.drained)
            if status == 0 and not lost:
                return 0
            status = status or 1  # srun returns 0 if all ranks that did not end with 0 were on nodes that failed
            if state not in (None, "RUNNING"):
                why = f"; the job is {state}"
            else:
                self.leave_out({**killed_nodes(lines), **lost})
                try:
                    self.leave_out({} if self.shortage() else check_nodes(self.nodes, self.where))
                except LaunchError as error:
                    print_message(PROGRAM, error.fault)
                if not set(nodes) & set(self.failed):
                    why = ", and no node failed: not repeated"
                elif self.shortage():
                    why = f". {self.shortage()}"
                elif attempt > self.options.retries:
                    why = f", the last of --retries {self.options.retries}"
            if why:
                print_message(PROGRAM, f"run {attempt} exited with status {status}{why}")
                return status

    def step(self, nodes):
        """Run a step; return its exit status, whether this program was told to end, and srun's messages."""
        where = [*self.where[1:], f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}"]
        command = ["srun", *LIMITS, *self.options.srun, *where, *self.tasks, *self.options.command]
        left = OF_STEP if self.is_in_step else SIZES
        env = {name: text for name, text in self.env.items() if not left.match(name)}
        received, process = [], None

        def pass_on(number, _):
            received.append(number)
            if process and number != signal.SIGINT:
                process.send_signal(number)

        for number in SIGNALS:
            signal.signal(number, pass_on)
        process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE)
        for number in received:  # before srun was there
            process.send_signal(number)
        lines = copy(process.stderr.fileno())
        status = process.wait()
        exit_on_signals()
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


def query(*command):
    """The rows that a command of Slurm prints, split at `|`; none if it fails."""
    lines = call(command, QUERY_SECONDS)[1].splitlines()
    return [[word.strip() for word in line.split("|", 2)] for line in lines if line.count("|") >= 2]


def job_state(job):
    """The state of the job, as RUNNING, and the nodes that it still has; None, None if Slurm does not answer.

    squeue prints all elements of an array for the one that has the array's number.
    """
    rows = query("squeue", "--noheader", f"--jobs={job}", "--format=%A|%T|%N")
    found = [(state, hosts(nodes) if nodes else []) for number, state, nodes in rows if number == job]
    return (found or [(None, None)])[0]


def node_states(nodes):
    """The state of each node that Slurm reports, with the reason that the administrator gave."""
    rows = query("sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%N|%T|%E")
    return {node: (state, f" ({why})" if why.lower() not in ("", "none") else "") for node, state, why in rows}


def lost_nodes(nodes, in_job, drained):
    """The nodes that Slurm reports as failed, each with the reason; `in_job` has those of the job, None if unknown.

    srun knows no status of a rank on such a node, and returns 0 if all others did (Slurm 22.05): a step with one is not
    complete, whatever its status. `drained` has the nodes that the site had taken out of service before.
    """
    failed, states = {}, node_states(nodes)
    for node in nodes:
        state, why = states.get(node, ("", ""))
        if BAD.match(state) or (state.startswith("drain") and node not in drained):
            failed[node] = f"Slurm reports {state}{why}"
        elif in_job is not None and node not in in_job:
            failed[node] = "Slurm removed it from the job"
    return failed


def killed_nodes(lines):
    """The nodes that srun reports as failed in its `lines`, each with the reason.

    The end of all tasks of a node by SIGKILL is the node's failure if srun reports it first, and then that it has
    terminated the tasks of other nodes. Tasks that an exit status ended first are the program's failure.
    """
    lost = [node for found in map(NODE_FAILURE.match, lines) if found for node in hosts(found.group(1))]
    if lost:
        return dict.fromkeys(lost, "srun: Node failure")
    ends = [(hosts(found.group(1)), found.group(2)) for found in map(TASKS.match, lines) if found]
    by_node = {}
    for nodes, end in ends:
        for node in nodes:
            by_node.setdefault(node, set()).add(end)
    if not ends or ends[0][1] != "Killed" or {"Terminated"} not in by_node.values():
        return {}
    return {node: "srun: its tasks were killed" for node in ends[0][0] if by_node[node] == {"Killed"}}


def check_nodes(nodes, where):
    """The nodes that fail pytorch-doctor's checks or do not answer, each with the reason.

    Checks that fail on all nodes are reported alone. Raises LaunchError if no node answers: it is not the nodes.
    """
    answers, _ = ask(nodes, where)
    failed, silent = {}, [node for node in nodes if node not in answers]
    with ThreadPoolExecutor(AT_ONCE) as pool:  # a node that does not answer ends the step on the others
        for node, (answer, reason) in zip(silent, pool.map(lambda node: ask([node], where), silent)):
            answers.update(answer)
            failed.update({} if answer else {node: reason})
    if not answers:
        raise LaunchError(f"no node answers pytorch-doctor: {nodes[0]}: {failed[nodes[0]]}", "omit it: --no-preflight")
    common = set.intersection(*map(set, answers.values())) if len(answers) > 1 else set()
    for node, found in answers.items():
        own = [f"pytorch-doctor: {check}: {found[check]}" for check in found if check not in common]
        failed.update({node: own[0]} if own else {})
    for check in sorted(common):
        print_message(PROGRAM, f"all nodes: pytorch-doctor: {check}: {next(iter(answers.values()))[check]}")
    return failed


def ask(nodes, where):
    """The failed checks of each node that answers, and srun's first error, or that there is no answer."""
    where = [*where, f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}", f"--ntasks={len(nodes)}"]
    step = ["--overlap", "--ntasks-per-node=1", "--cpu-bind=none", "--kill-on-bad-exit=0", "--time=3", "--mpi=none"]
    doctor = [DOCTOR, "--json", f"--timeout={CHECK_SECONDS}", f"--only={CHECKS}"]
    text = call(["srun", *where, *step, *doctor], STEP_SECONDS, stderr=subprocess.STDOUT)[1]
    answers, reasons = {}, []
    for line in text.splitlines():
        if line.startswith("srun: error: "):
            reasons.append(line.replace("error: ", "", 1))
        with contextlib.suppress(ValueError):  # other lines, and those that are cut
            found = json.loads(line) if line.startswith("{") else {}
            failed = [row for row in found.get("checks", []) if row["verdict"] == FAIL]
            if found.get("node") in nodes:
                answers[found["node"]] = {row["check"]: row["finding"] for row in failed}
    return answers, [*reasons, f"no answer within {STEP_SECONDS} s"][0]
