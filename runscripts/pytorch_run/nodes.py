# SPDX-License-Identifier: BSD-3-Clause
"""Which nodes of a job failed: what Slurm, srun and pytorch-doctor report about them."""

import json
import re
import subprocess
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pytorch_command import call, print_message
from pytorch_doctor import FAIL
from pytorch_launch import LaunchError, is_number
from pytorch_launch.nodelist import hosts

PROGRAM = "pytorch-run"
DOCTOR = str(Path(__file__).absolute().parents[1] / "pytorch-doctor")
#: The doctor's checks of a node; the others are of the module and the job.
CHECKS = "gpu,driver,network,interfaces,fabric,caches"
#: For squeue and sinfo; for one check; for a step with all nodes, with srun's 10 s for a node that does not answer.
QUERY_SECONDS, CHECK_SECONDS, STEP_SECONDS = 60, 60, 90
#: Steps with one node each that run side by side, for nodes that did not answer in a step with all.
AT_ONCE = 16
#: States of a node that runs no jobs (sinfo(1), "NODE STATE CODES"), as their first letters, or not responding.
BAD = re.compile(r"down|fail|error|unknown|power|reboot|future|.*\*$")
#: What srun prints about a node where it cannot start a task; about one that Slurm lost; and about the end of tasks.
LAUNCH_FAILURE = re.compile(r"failed on node ([^\s:]+): (.*)")
NODE_FAILURE = re.compile(r"srun: error: Node failure on (\S+)")
TASKS = re.compile(r"srun: error: ([^\s:]+): tasks? [\d,-]+: (.+)")

Job = namedtuple("Job", "number where tasks nodes")
Job.__doc__ = """A job or a component of one: its number for squeue, the options of srun that name it, and the tasks and
nodes of its allocation as its variables tell, None if they do not."""


def find_job(env, group):
    """The Job of this allocation; `group` is its component. Raises LaunchError."""
    number, where, end = env.get("SLURM_JOB_ID"), [], ""
    if not number:
        remedy = "run it in `salloc --no-kill -N3`, or in a batch script with #SBATCH --no-kill"
        raise LaunchError("not in an allocation of Slurm: SLURM_JOB_ID is not set", remedy)
    if env.get("SLURM_HET_SIZE"):
        end, where = f"_HET_GROUP_{group}", [f"--het-group={group}"]
        if not env.get("SLURM_JOB_ID" + end):
            fault = f"--het-group={group} is not a component of job {number}"
            raise LaunchError(fault, "name one: pytorch-run starts a step in one component")
    sizes = [env.get(name + end) or "" for name in ("SLURM_NTASKS", "SLURM_JOB_NUM_NODES")]
    numbers = [int(text) if is_number(text) else None for text in sizes]
    return Job(env["SLURM_JOB_ID" + end], [f"--jobid={number}", *where], *numbers)


def query(*command):
    """The rows that a command of Slurm prints, split at `|`; none if it fails."""
    lines = call(command, QUERY_SECONDS)[1].splitlines()
    return [[word.strip() for word in line.split("|", 2)] for line in lines if line.count("|") >= 2]


def job_state(job):
    """The state of the job, as RUNNING, and the nodes that it still has; None, None if Slurm does not answer.

    squeue prints all elements of an array for the one that has the array's number.
    """
    rows = query("squeue", "--noheader", f"--jobs={job.number}", "--format=%A|%T|%N")
    found = [(state, hosts(nodes) if nodes else []) for number, state, nodes in rows if number == job.number]
    return (found or [(None, None)])[0]


def node_states(nodes):
    """The state of each node that Slurm reports, with the reason that the administrator gave."""
    rows = query("sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%N|%T|%E")
    return {node: (state, f" ({why})" if why.lower() not in ("", "none") else "") for node, state, why in rows}


def lost_nodes(nodes, in_job, states, drained=()):
    """The nodes that Slurm reports as failed, each with the reason; `in_job` has those of the job, None if unknown.

    srun knows no status of a rank on such a node, and returns 0 if all others did (Slurm 22.05): a step with one is not
    complete, whatever its status. `drained` has the nodes that the site had taken out of service before.
    """
    failed = {}
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


def check_nodes(nodes, job):
    """The nodes that fail pytorch-doctor's checks or do not answer, each with the reason.

    Checks that fail on all nodes are reported alone. Raises LaunchError if no node answers: it is not the nodes.
    """
    answers, silent = _ask(nodes, job)
    unknown = [node for node in nodes if node not in answers and node not in silent]
    with ThreadPoolExecutor(AT_ONCE) as pool:  # a node that does not answer ends the step on the others
        for more, reasons in pool.map(lambda node: _ask([node], job), unknown if len(nodes) > 1 else ()):
            answers.update(more)
            silent.update(reasons)
    failed = {node: silent.get(node, f"no answer within {STEP_SECONDS} s") for node in nodes if node not in answers}
    if not answers:
        raise LaunchError(f"no node answers pytorch-doctor: {nodes[0]}: {failed[nodes[0]]}", "omit it: --no-preflight")
    common = set.intersection(*map(set, answers.values())) if len(answers) > 1 else set()
    for node, found in answers.items():
        own = [f"pytorch-doctor: {check}: {found[check]}" for check in found if check not in common]
        failed.update({node: own[0]} if own else {})
    for check in sorted(common):
        print_message(PROGRAM, f"all nodes: pytorch-doctor: {check}: {next(iter(answers.values()))[check]}")
    return failed


def _ask(nodes, job):
    """The failed checks of each node that answers, and srun's reasons why it started nothing on others."""
    where = [*job.where, f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}", f"--ntasks={len(nodes)}"]
    step = ["--overlap", "--ntasks-per-node=1", "--cpu-bind=none", "--kill-on-bad-exit=0", "--time=3", "--mpi=none"]
    doctor = [DOCTOR, "--json", f"--timeout={CHECK_SECONDS}", f"--only={CHECKS}"]
    text = call(["srun", *where, *step, *doctor], STEP_SECONDS, stderr=subprocess.STDOUT)[1]
    answers = {}
    for line in text.splitlines():
        try:
            found = json.loads(line) if line.startswith("{") else {}
        except ValueError:  # cut
            continue
        if found.get("node") in nodes:
            failed = [row for row in found["checks"] if row["verdict"] == FAIL]
            answers[found["node"]] = {row["check"]: row["finding"] for row in failed}
    reasons = dict(LAUNCH_FAILURE.findall(text))
    errors = [line[len("srun: error: ") :] for line in text.splitlines() if line.startswith("srun: error: ")]
    if not reasons and errors and len(nodes) == 1:
        reasons[nodes[0]] = errors[-1]
    return answers, {node: f"srun: {reasons[node]}" for node in nodes if node in reasons and node not in answers}
