# SPDX-License-Identifier: BSD-3-Clause
"""Checks the names of the nodes on the fast network, from which MASTER_ADDR and torchrun's addresses follow."""

import platform

from pytorch_launch import LaunchError
from pytorch_launch.environment import FABRIC_NAME
from pytorch_launch.fabric import fabric_name, is_local, look_up
from pytorch_launch.launchers.variables import node_list, node_name
from pytorch_launch.nodelist import first_host

from pytorch_doctor import fail, not_applicable, ok, warn


def check(here):
    """Whether this node and the first one of the job have the names that the profile describes."""
    pattern = here.env.get(FABRIC_NAME)
    if not pattern:
        return not_applicable("fabric", "the profile sets no names on the fast network")
    if not here.trains_here:
        return not_applicable("fabric", f"{FABRIC_NAME}={pattern} is for compute nodes")
    node = node_name(here.env, platform.node())
    name = fabric_name(pattern, node)
    found = look_up(here.env, name)
    remedy = f"correct {FABRIC_NAME}, or export it empty to use the plain names"
    if not found:
        return warn("fabric", f"{name} ({FABRIC_NAME}={pattern}) does not resolve: the ranks use {node}", remedy)
    if not is_local(found):
        finding = f"{name} ({FABRIC_NAME}={pattern}) is {', '.join(found)}, which is not an address of this node"
        return fail("fabric", finding, remedy)
    first = _first_node(here)
    if first is not None and not look_up(here.env, fabric_name(pattern, first)):
        finding = f"{name} resolves, but {fabric_name(pattern, first)}, of the first node, does not"
        return warn("fabric", finding, "compare this node's /etc/hosts and name servers with those of another node")
    return ok("fabric", f"{node} is {name}, {', '.join(found)} ({FABRIC_NAME}={pattern})")


def _first_node(here):
    """The first node of this step or job, None outside one; the check `slurm` reports a list that cannot be read."""
    try:
        return first_host(node_list(here.env))
    except LaunchError:
        return None
