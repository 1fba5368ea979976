# SPDX-License-Identifier: BSD-3-Clause
"""Checks the variables of the Slurm step, the addresses of its nodes, and the cores of its tasks."""

import sys

from pytorch_launch import LaunchError
from pytorch_launch.nodelist import NodeListError, hosts
from pytorch_launch.plan import make_plan
from pytorch_launch.topology import cpu_list
from pytorch_launch.world import NODE_LISTS

from pytorch_doctor import fail, not_applicable, ok, warn

#: Looking up more names could take longer than the deadline.
MOST_NAMES = 64
LOOK_UP = "import socket, sys\nfor name in sys.argv[1:]:\n    print(name, flush=True)\n    socket.getaddrinfo(name, 1)"


def check_slurm(here):
    """Whether a rank can find its number, the address of rank 0, and its cores."""
    if not here.env.get("SLURM_JOB_ID"):
        return not_applicable("not in a job of Slurm")
    try:
        lists = [here.env[name] for name in NODE_LISTS if here.env.get(name)]
        nodes = hosts(lists[0]) if lists else []
        plan = make_plan(here.env)
    except NodeListError as error:
        return fail(error.fault, f"start the step again; unset {' '.join(NODE_LISTS)}, if you set it")
    except LaunchError as error:
        return fail(error.fault, error.remedy)
    outcome = here.run([sys.executable, "-I", "-S", "-c", LOOK_UP, *nodes[:MOST_NAMES]])
    if outcome.status and outcome.output:
        remedy = (
            "export MASTER_ADDR=<address of the first node>; report it to the site: its name must resolve on all nodes"
        )
        return fail(f"node {outcome.output.split()[-1]} of this job has no address here", remedy)
    if plan.placement.warnings:
        shared = plan.placement.warnings[0]
        return warn(shared.fault, shared.remedy)
    world = plan.world
    cpus = f"CPUs {cpu_list(plan.placement.cpus)} of {cpu_list(plan.placement.node.allowed)}"
    cpus += f" for rank {world.rank} of {world.size}"
    return ok(f"{world.source}, {len(nodes)} node{'s' * (len(nodes) != 1)}, {cpus}")
