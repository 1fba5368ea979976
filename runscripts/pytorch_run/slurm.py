# SPDX-License-Identifier: BSD-3-Clause
"""Runs Slurm's commands, and reads what they report about the nodes of a job."""

import signal
import subprocess

from pytorch_launch.nodelist import hosts

#: For squeue and sinfo, which wait for a busy controller.
QUERY_SECONDS = 60
#: After SIGTERM, for srun to end its step.
END_SECONDS = 10

#: Variables of the allocation that srun(1) reads as --ntasks: a step on some nodes has fewer.
SIZES = ("SLURM_NTASKS", "SLURM_NPROCS")

#: States of a node that runs no jobs (sinfo(1), "NODE STATE CODES"), as their first letters.
BAD_STATES = ("down", "fail", "error", "unknown", "power", "reboot", "future")
#: Of a node that the site takes out of service, while its job may continue.
DRAINED = "drain"


class State:
    """What Slurm reports about a node: its state as `down*`, and the reason that the administrator gave."""

    def __init__(self, name, reason):
        self.name = name
        self.reason = reason if reason.lower() not in ("", "none") else ""

    def __str__(self):
        return f"Slurm reports {self.name}" + (f" ({self.reason})" if self.reason else "")

    @property
    def is_bad(self):
        """Whether no step can run on the node. A `*` marks a node that does not respond."""
        return self.name.startswith(BAD_STATES) or self.name.endswith("*")

    @property
    def is_drained(self):
        """Whether the site takes the node out of service."""
        return self.name.startswith(DRAINED)


def query(command, env):
    """The lines that a command of Slurm prints, None if it fails."""
    try:
        found = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=QUERY_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.decode(errors="replace").splitlines() if found.returncode == 0 else None


def job_state(env):
    """The state of the job, as RUNNING, and its nodes; None, None if Slurm does not answer.

    With --no-kill, Slurm removes a node that failed from its job.
    """
    lines = query(["squeue", "--noheader", "--jobs", env["SLURM_JOB_ID"], "--format", "%T|%N"], env)
    if not lines:
        return None, None
    state, _, nodes = lines[0].strip().partition("|")
    return state, list(hosts(nodes)) if nodes else []


def node_states(nodes, env):
    """The State of each of the nodes by its name, of those that Slurm reports."""
    lines = query(["sinfo", "--noheader", "--Node", "--nodes", ",".join(nodes), "--format", "%N|%T|%E"], env)
    rows = [line.split("|", 2) for line in lines or ()]
    return {row[0].strip(): State(row[1].strip(), row[2].strip()) for row in rows if len(row) == 3}


def step_environment(env):
    """The environment for srun, without what the allocation says about the number of tasks."""
    return {name: value for name, value in env.items() if name not in SIZES}


def output_of_step(options, command, env, seconds):
    """The exit status of a step, None if it takes longer than `seconds`, and its output with that of srun.

    --overlap: the step of a node that failed counts as running until Slurm's SlurmdTimeout, and keeps its resources.
    """
    process = subprocess.Popen(
        ["srun", "--overlap", *options, *command],
        env=step_environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output.decode(errors="replace")
    except subprocess.TimeoutExpired:
        return None, _end(process).decode(errors="replace")
    except BaseException:  # a signal that ends this program
        _end(process)
        raise


def _end(process):
    """End a step; return its output."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        process.send_signal(number)
        try:
            return process.communicate(timeout=END_SECONDS)[0]
        except subprocess.TimeoutExpired:
            continue
    return b""
