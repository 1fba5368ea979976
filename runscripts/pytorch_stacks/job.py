# SPDX-License-Identifier: BSD-3-Clause
"""Asks Slurm for the nodes of a job, and runs this command on each of them in a step of its own."""

import os
import subprocess

from pytorch_launch.nodelist import NodeListError, hosts

from pytorch_stacks import StacksError
from pytorch_stacks.lines import read_lines

#: For srun to start and end the step, beyond the time for a node.
STEP_SECONDS = 20


def find_nodes(job, step, uid):
    """The number of a job of user `uid`, and the node list of its step, else of the job. Raises StacksError."""
    rows = _squeue("%A|%T|%U|%u|%N", "--jobs=" + job)
    # an array's number stands for all its tasks
    running = [row for row in rows if row[1] in ("RUNNING", "COMPLETING", "SUSPENDED")]
    if not running:
        state = "its state is " + rows[0][1] if rows else "Slurm has no such job"
        raise StacksError(f"job {job} does not run: {state}. Running jobs: squeue --me")
    if len(running) > 1:
        names = ", ".join(row[0] for row in running[:8])
        raise StacksError(f"{job} stands for several jobs: {names}. Name one of them")
    number, _, owner, name, nodes = running[0]
    if owner != str(uid):
        raise StacksError(f"job {job} belongs to {name}. Only its user can read its stacks")
    if step is None:
        return number, nodes
    steps = _squeue("%i|%N", "--steps", "--jobs=" + number)
    found = dict(steps).get(f"{number}.{step}")
    if found is None:
        others = ", ".join(name for name, _ in steps) or "none"
        raise StacksError(f"step {number}.{step} does not run. Steps of this job: {others}")
    return number, found


def ask_nodes(job, step, nodes, seconds, program):
    """What `node.read_node` returned on each of `nodes`, and a list of (node, reason) for those without an answer."""
    names = _expand(nodes)
    command = [
        "srun",
        "--jobid=" + job,
        "--overlap",
        "--nodelist=" + nodes,
        f"--nodes={len(names)}",
        f"--ntasks={len(names)}",
        "--ntasks-per-node=1",
        "--cpu-bind=none",
        "--mem=0",
        "--gres=none",
        "--mpi=none",
        "--kill-on-bad-exit=0",
        "--quiet",
        "--job-name=pytorch-stacks",
        "--input=none",
        program,
        "--here",
        "--of",
        job if step is None else f"{job}.{step}",
        "--timeout",
        str(seconds),
        "--raw",
    ]
    output, errors, _ = _call(command, 2 * seconds + STEP_SECONDS)
    answers = read_lines(output)
    answered = {answer["node"] for answer in answers}
    return answers, [(name, f"no answer{_reason(errors)}") for name in names if name not in answered]


def _reason(errors):
    """What srun or a node reported, without the statuses of tasks, of which there is one for each node."""
    lines = [line for line in errors.splitlines() if line.strip() and "Exited with exit code" not in line]
    return f": {lines[-1].strip()}" if lines else ""


def _expand(nodes):
    try:
        return list(hosts(nodes))
    except NodeListError as error:
        raise StacksError(f"{error.fault}. {error.remedy}") from error


def _squeue(fields, *selection):
    """The rows of squeue with these fields."""
    output, errors, status = _call(["squeue", "--noheader", "--format=" + fields, *selection], 60)
    if status != 0 and "Invalid job id" not in errors:
        raise StacksError(f"squeue failed: {errors.strip()}. Check Slurm (sinfo)")
    return [row.strip().split("|") for row in output.splitlines() if row.strip()]


def _call(command, seconds):
    """Standard output and error and the exit status of a command; what it wrote until it timed out."""
    # the variables of a job or step around this command describe another step
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name == "SLURM_CONF"}
    try:
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise StacksError(f"{command[0]}: {error.strerror}. Run pytorch-stacks where Slurm's commands are") from error
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.terminate()  # srun ends its step
        try:
            output, errors = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
        errors += f"\ntimed out after {seconds} s".encode()
    return output.decode(errors="replace"), errors.decode(errors="replace"), process.returncode
