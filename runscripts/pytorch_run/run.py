# SPDX-License-Identifier: BSD-3-Clause
"""Reads command line and environment, checks the nodes, and runs steps until one is complete or no node is left."""

import os
import signal
import subprocess
import sys
import time

from pytorch_launch import LaunchError
from pytorch_launch.nodelist import hosts

from pytorch_run.evidence import find_failed, lost_nodes, reported_by_slurm
from pytorch_run.options import HELP, OptionError, parse
from pytorch_run.plan import Plan, show_nodes
from pytorch_run.preflight import check_nodes
from pytorch_run.slurm import job_state, node_states, step_environment

PROGRAM = "pytorch-run"

#: Passed on to srun, which passes them on to its tasks. A terminal sends SIGINT to srun itself.
PASSED = ("SIGHUP", "SIGTERM", "SIGUSR1", "SIGUSR2")
#: After these the program was asked to end, and its end is no failure of a node.
ENDING = ("SIGHUP", "SIGINT", "SIGTERM")

#: Instead of the 0 that srun returns if all ranks that did not end with 0 were on nodes that failed.
LOST = 1


def main(arguments):
    """Run the command line; return the exit status."""
    if arguments[:1] == ["--help"]:
        sys.stdout.write(HELP)
        return 0
    for name in PASSED:
        signal.signal(getattr(signal, name), lambda number, _: sys.exit(128 + number))
    try:
        return run(parse(arguments), dict(os.environ))
    except LaunchError as error:
        print_message(str(error))
        return error.status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def run(options, env):
    """Run steps on the nodes of the allocation; return the exit status of the last one. Raises LaunchError."""
    if not env.get("SLURM_JOB_ID") or not env.get("SLURM_JOB_NODELIST"):
        remedy = "run it in `salloc --no-kill -N3`, or in a batch script with #SBATCH --no-kill"
        raise OptionError("not in an allocation of Slurm: SLURM_JOB_ID is not set", remedy)
    in_job = job_state(env)[1]
    excluded = set(hosts(options.exclude)) if options.exclude else set()
    nodes = [node for node in hosts(env["SLURM_JOB_NODELIST"]) if node not in excluded]
    plan = Plan(options, nodes, env)
    states = node_states(nodes, env)
    for node, reason in reported_by_slurm(nodes, in_job, states, drained=nodes).items():
        plan.leave_out(node, reason, print_message)
    # those that the site takes out of service are the last to be used
    drained = [node for node in nodes if node in states and states[node].is_drained]
    plan.put_last(drained)
    if options.preflight:
        preflight(plan, env)
    return run_steps(plan, env, drained)


def preflight(plan, env):
    """Check the nodes until none of them fails. Raises LaunchError."""
    start = time.monotonic()
    while True:
        plan.require_nodes()
        result = check_nodes(plan.nodes, env, plan.options.command, plan.step_options)
        for note in result.notes:
            print_message(note)
        if result.fault:
            raise LaunchError(result.fault + "\nCorrect this, or omit the check with --no-preflight")
        for node, reason in result.failed.items():
            plan.leave_out(node, reason, print_message)
        if not result.failed:
            print_message(f"{len(plan.nodes)} nodes checked in {time.monotonic() - start:.0f} s")
            return


def run_steps(plan, env, drained):
    """Run the command until it ends without a failure of a node; return the exit status of the last step."""
    for attempt in range(plan.options.retries + 1):
        plan.require_nodes()
        nodes = plan.next_nodes()
        spare = len(plan.nodes) - len(nodes)
        print_message(f"run {attempt + 1} on {show_nodes(nodes)}, {spare} spare")
        status, received = run_step(plan.step_options(nodes), plan.options.command, env, is_first=attempt == 0)
        if received in ENDING or (status == 0 and not lost_nodes(nodes, env, drained)):
            return status
        status = status or LOST
        state, _ = job_state(env)
        if state not in (None, "RUNNING"):
            print_message(f"run {attempt + 1} exited with status {status}; the job is {state}")
            return status
        failed = find_failed(nodes, env, drained)
        if not failed:
            print_message(f"run {attempt + 1} exited with status {status}, and no node failed: not repeated")
            return status
        for node, reason in failed.items():
            plan.leave_out(node, reason, print_message)
        if plan.shortage:
            print_message(f"run {attempt + 1} exited with status {status}. {plan.shortage}")
            return status
    print_message(f"run {attempt + 1} exited with status {status}, the last of --retries {plan.options.retries}")
    return status


def run_step(options, command, env, is_first):
    """The exit status of a step with this terminal, and the name of a signal that this program received, or None."""
    # the step of a node that failed counts as running until Slurm's SlurmdTimeout, and keeps its resources
    overlap = [] if is_first else ["--overlap"]
    received, missed = [], []
    process = None

    def pass_on(number, _):
        received.append(signal.Signals(number).name)
        if process is None:
            missed.append(number)
        elif number != signal.SIGINT:
            process.send_signal(number)

    before = {name: signal.signal(getattr(signal, name), pass_on) for name in (*PASSED, "SIGINT")}
    try:
        process = subprocess.Popen(["srun", *overlap, *options, *command], env=step_environment(env))
        for number in missed:  # before srun was there
            process.send_signal(number)
        status = process.wait()
    except OSError as error:
        raise LaunchError(f"cannot start srun: {error.strerror}") from error
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
    ends = [name for name in received if name in ENDING]
    return 128 - status if status < 0 else status, (ends or received or [None])[0]


def print_message(text):
    """Print one line of this program."""
    sys.stderr.write(f"{PROGRAM}: {text}\n")
    sys.stderr.flush()
