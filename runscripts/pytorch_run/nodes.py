# SPDX-License-Identifier: BSD-3-Clause
"""Asks each node: whether it answers, and what pytorch-doctor finds there."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pytorch_doctor import FAIL

from pytorch_run.slurm import output_of_step

#: The checks of a node; the others are of the module and the job.
CHECKS = "gpu,driver,network,interfaces,fabric,caches"
#: For one check; then for a step with all nodes, including srun's 10 s for a node that does not answer.
CHECK_SECONDS, STEP_SECONDS = 60, 90
#: Steps with one node each that run side by side, for nodes that did not answer in a step with all.
AT_ONCE = 16

DOCTOR = str(Path(__file__).absolute().parents[1] / "pytorch-doctor")
#: What srun prints about a node where it cannot start a task.
LAUNCH_FAILURE = re.compile(r"failed on node ([^\s:]+): (.*)")


def ask_nodes(nodes, env, run=output_of_step):
    """The findings of each node that answers, by its name; and the reasons why others do not.

    A finding is a row of `pytorch-doctor --json`. `run` runs a step, as `output_of_step`.
    """
    answers, silent = _ask(nodes, env, run)
    unknown = [node for node in nodes if node not in answers and node not in silent]
    # a node that does not answer ends the step on the others
    if unknown and len(nodes) > 1:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for more_answers, more_silent in pool.map(lambda node: _ask([node], env, run), unknown):
                answers.update(more_answers)
                silent.update(more_silent)
    for node in nodes:
        if node not in answers:
            silent.setdefault(node, f"no answer within {STEP_SECONDS} s")
    return answers, silent


def failed_checks(answers):
    """The first failed check of each node, by the node; and those that all nodes have, by the check."""
    failures = {
        node: {row["check"]: row["finding"] for row in rows if row["verdict"] == FAIL} for node, rows in answers.items()
    }
    common = set.intersection(*map(set, failures.values())) if len(failures) > 1 else set()
    of_nodes = {}
    for node, found in failures.items():
        own = [f"pytorch-doctor: {check}: {finding}" for check, finding in found.items() if check not in common]
        if own:
            of_nodes[node] = own[0]
    first = next(iter(failures.values()), {})
    return of_nodes, {check: first[check] for check in sorted(common)}


def _ask(nodes, env, run):
    options = [
        f"--nodes={len(nodes)}",
        f"--nodelist={','.join(nodes)}",
        f"--ntasks={len(nodes)}",
        *("--ntasks-per-node=1", "--cpu-bind=none", "--kill-on-bad-exit=0"),
    ]
    command = [DOCTOR, "--json", f"--timeout={CHECK_SECONDS}", f"--only={CHECKS}"]
    _, text = run(options, command, env, STEP_SECONDS)
    answers = {}
    for line in text.splitlines():
        try:
            found = json.loads(line) if line.startswith("{") else None
        except ValueError:  # cut
            continue
        if found and found.get("node") in nodes:
            answers[found["node"]] = found["checks"]
    failures = {node: f"srun: {reason}" for node, reason in LAUNCH_FAILURE.findall(text)}
    return answers, {node: failures[node] for node in nodes if node in failures and node not in answers}
