# SPDX-License-Identifier: BSD-3-Clause
"""Checks the nodes before the first step: the doctor's checks on each, then an all-reduce among all of their ranks."""

import re

from pytorch_run.nodes import ask_nodes, failed_checks
from pytorch_run.slurm import output_of_step

#: The commands of the runtime that start a rank or an agent; the words before them enter the image.
LAUNCHERS = ("conda-python-distributed", "torchrun-distributed")
#: For the all-reduce, with the import of torch from a slow file system.
ALL_REDUCE_SECONDS = 180
SHOWN_LINES = 5


class Preflight:
    """The result for some nodes: those that `failed`, each with the reason; `fault` if no single node is at fault.

    `notes` has sentences about faults that are no reason to leave out a node.
    """

    def __init__(self, failed, fault=None, notes=()):
        self.failed = failed
        self.fault = fault
        self.notes = list(notes)


def check_nodes(nodes, env, command, step_options, run=output_of_step):
    """The Preflight of `nodes`.

    `command` is the user's, `step_options` returns the options of srun for a list of nodes.
    """
    answers, failed = ask_nodes(nodes, env, run)
    of_nodes, common = failed_checks(answers)
    failed.update(of_nodes)
    notes = [f"all nodes: pytorch-doctor: {check}: {finding}" for check, finding in common.items()]
    check = all_reduce_command(command, env, has_gpus(answers))
    if check is None:
        notes.append(f"no all-reduce before the first run: the command has no {' or '.join(LAUNCHERS)}, or no PAYLOAD")
    if failed or check is None:
        return Preflight(failed, notes=notes)
    status, text = run([*step_options(nodes), "--output=all"], check, env, ALL_REDUCE_SECONDS)
    if status == 0:
        return Preflight({}, notes=notes)
    failed = named_nodes(text, nodes)
    return Preflight(failed, None if failed else _fault(status, text), notes)


def all_reduce_command(command, env, gpu):
    """The command of a quick all-reduce with the Python of the user's `command`; None if that is not known."""
    names = [word.rpartition("/")[2] for word in command]
    place = next((names.index(name) for name in LAUNCHERS if name in names), None)
    if place is None or not env.get("PAYLOAD"):
        return None
    check = [f"{env['PAYLOAD']}/allreduce_check.py", "--quick", *(["--gpu"] if gpu else [])]
    return [*command[: place + 1], *check]


def has_gpus(answers):
    """Whether the module is for GPUs, and every node has some."""
    rows = [row for found in answers.values() for row in found if row["check"] == "gpu"]
    return bool(rows) and all(row["verdict"] == "ok" for row in rows)


def named_nodes(text, nodes):
    """The nodes that lines of the all-reduce with FAIL name, each with the line."""
    found = {}
    short = {node.partition(".")[0]: node for node in nodes}
    for line in text.splitlines():
        _, mark, rest = line.partition("FAIL ")
        hosts = {host.partition(".")[0] for host in re.findall(r"\(([^\s()]+)\)", rest)} if mark else ()
        for host in hosts:
            if host in short:
                found.setdefault(short[host], f"all-reduce: {rest.strip()}")
    return {node: found[node] for node in nodes if node in found}


def _fault(status, text):
    how = f"did not end within {ALL_REDUCE_SECONDS} s" if status is None else f"exited with status {status}"
    last = [line for line in text.splitlines() if line.strip()][-SHOWN_LINES:]
    return "\n    ".join([f"the all-reduce before the first run {how}, and names no node. Its last lines:", *last])
