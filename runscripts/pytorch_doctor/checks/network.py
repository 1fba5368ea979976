# SPDX-License-Identifier: BSD-3-Clause
"""Checks the fast network between nodes, the interfaces that the profile names, and the names of nodes on it."""

import platform

from pytorch_launch import LaunchError
from pytorch_launch.environment import FABRIC_NAME, ONE_NODE, SOCKET_IFNAME
from pytorch_launch.fabric import choose_interface, fabric_name, find_interface, is_local, list_faults, look_up
from pytorch_launch.nodelist import first_host
from pytorch_launch.world import node_list, node_name

from pytorch_doctor import fail, not_applicable, ok, warn

#: The cards in /sys by the values of PYTORCH_FAST_NETWORK.
CARDS = {"cxi": "/sys/class/cxi", "ib": "/sys/class/infiniband"}
ELSEWHERE = "if the profile is for this cluster, the node is broken: compare it with another one"


def check_interfaces(here):
    """Whether the interfaces exist that NCCL and gloo are set to use, here or by the runscripts in a job."""
    present = here.names("/sys/class/net")
    by_runscripts, problem = choose_interface(here.env, "this node", here.root)
    if problem and here.trains_here:
        return warn(problem.fault, problem.remedy)
    named = {name: here.env[name] for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if here.env.get(name)}
    named.update(by_runscripts)
    if not named and problem:
        return not_applicable(f"{SOCKET_IFNAME}={here.env[SOCKET_IFNAME]} is for compute nodes")
    if not named:
        return not_applicable("none is set; torch uses the first one that is up")
    for variable, value in named.items():
        chosen = chosen_by_nccl(value, present) if variable.startswith("NCCL") else chosen_by_gloo(value, present)
        if not chosen:
            finding = f"{variable}={value} matches no interface: here are {' '.join(present)}"
            if not here.trains_here:
                return not_applicable(finding + ", a login node's")
            return fail(finding, f"export {variable}=<one of these>, or unset it; {ELSEWHERE}")
        down = [name for name in chosen if here.read(f"/sys/class/net/{name}/operstate") == "down"]
        # a list of interfaces to exclude does not require all others
        if down and (len(down) == len(chosen) or not value.startswith("^")):
            return warn(f"{variable}={value}: {' '.join(down)} is down", ELSEWHERE)
    reason = ""
    if by_runscripts:
        name, faults = find_interface(here.env, here.root)
        passed = f"; {list_faults(faults)}" if faults else ""
        reason = f" ({name} is the first of {SOCKET_IFNAME} that is up{passed})"
    return ok(", ".join("=".join(item) for item in named.items()) + reason)


def chosen_by_nccl(value, present):
    """The interfaces that NCCL uses: prefixes of names, `=` for exact names, `^` for all others.

    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html, NCCL_SOCKET_IFNAME.
    """
    exclude = value.startswith("^")
    exact = value[exclude:].startswith("=")
    names = tuple(value[exclude + exact :].split(","))
    return [name for name in present if (name in names if exact else name.startswith(names)) != exclude]


def chosen_by_gloo(value, present):
    """The interfaces that gloo uses: all of a list of names, or it fails.

    https://docs.pytorch.org/docs/stable/distributed.html, "Choosing the network interface to use".
    """
    names = value.split(",")
    return names if all(name in present for name in names) else []


def check_network(here):
    """Whether the cards of the fast network exist, and what NCCL needs to use them."""
    expected = here.env.get("PYTORCH_FAST_NETWORK")
    if not expected:
        return not_applicable("the profile sets no fast network")
    if here.module and here.gpu is None:
        return not_applicable(f"only NCCL uses {expected}, and the module is for CPUs")
    directory = CARDS.get(expected.lower())
    if directory is None:
        return not_applicable(f"unknown PYTORCH_FAST_NETWORK={expected}")
    on_one_node = here.env.get("SLURM_JOB_NUM_NODES") == "1" and here.env.get(ONE_NODE + "NCCL_NET")
    exported = here.env.get("NCCL_NET")
    if on_one_node and exported and exported.lower() != on_one_node.lower():
        finding = f"NCCL_NET={exported} is exported, but in a job on one node the profile sets {on_one_node}"
        return warn(finding, f"export NCCL_NET={on_one_node}, and keep the other value for several nodes")
    avoided = None if on_one_node and exported else _avoided(here.env, expected)
    if avoided:
        return fail(f"{avoided} prevents NCCL from using {expected}", "unset " + avoided.split("=")[0])
    cards = here.names(directory)
    if not cards and not here.trains_here:
        return not_applicable(f"no {directory}, which login nodes may lack")
    if not cards:
        return fail(f"no card for {expected}: {directory} is empty", ELSEWHERE)
    down = [card for card in cards if expected.lower() == "ib" and not _is_active(here, f"{directory}/{card}")]
    if len(down) == len(cards):
        return fail(f"no port of {', '.join(cards)} is active", "exclude this node, and report it to the site")
    facts, _ = here.torch if expected == "cxi" and here.module and here.gpu else (None, None)
    if facts and not facts["plugin"]:
        named = here.env.get("NCCL_NET_PLUGIN")
        missing = f"NCCL_NET_PLUGIN={named}" if named else "libnccl-net.so nor librccl-net.so"
        remedy = "load the site's module of aws-ofi-nccl or aws-ofi-rccl, or use an image that has it"
        return fail(f"{cards[0]} exists, but NCCL's plugin for libfabric does not: no {missing}", remedy)
    if down:
        remedy = "set NCCL_IB_HCA to the others; if these should be active, report it to the site"
        return warn(f"{len(down)} of {len(cards)} cards have no active port: {', '.join(down)}", remedy)
    return ok(f"{expected}: {', '.join(cards)}")


def _is_active(here, card):
    """Whether a port of an InfiniBand or RoCE card is up: `4: ACTIVE` (Linux, ABI/stable/sysfs-class-infiniband)."""
    ports = here.names(card + "/ports")
    return any((here.read(f"{card}/ports/{port}/state") or "").endswith("ACTIVE") for port in ports)


def _avoided(env, expected):
    """A variable that turns the fast network off, as NAME=value; None without one."""
    network = expected.lower()
    off = {
        "NCCL_NET": env.get("NCCL_NET", "").lower() == "socket",
        "PYTORCH_MULTI_NODE_NCCL_NET": env.get("PYTORCH_MULTI_NODE_NCCL_NET", "").lower() == "socket",
        "NCCL_NET_PLUGIN": network == "cxi" and env.get("NCCL_NET_PLUGIN", "").lower() == "none",
        "NCCL_IB_DISABLE": network == "ib" and env.get("NCCL_IB_DISABLE", "0") not in ("", "0"),
    }
    return next((f"{name}={env[name]}" for name, is_off in off.items() if is_off), None)


def check_fabric(here):
    """Whether this node and the first one of the job have the names that the profile describes."""
    pattern = here.env.get(FABRIC_NAME)
    if not pattern:
        return not_applicable("the profile sets no names on the fast network")
    if not here.trains_here:
        return not_applicable(f"{FABRIC_NAME}={pattern} is for compute nodes")
    node = node_name(here.env, platform.node())
    name = fabric_name(pattern, node)
    found = look_up(here.env, name)
    remedy = f"correct {FABRIC_NAME}, or export it empty to use the plain names"
    if not found:
        return warn(f"{name} ({FABRIC_NAME}={pattern}) does not resolve: the ranks use {node}", remedy)
    if not is_local(found):
        finding = f"{name} ({FABRIC_NAME}={pattern}) is {', '.join(found)}, which is not an address of this node"
        return fail(finding, remedy)
    try:
        first = first_host(node_list(here.env))
    except LaunchError:  # outside a job; the check `slurm` reports a list that cannot be read
        first = None
    if first is not None and not look_up(here.env, fabric_name(pattern, first)):
        finding = f"{name} resolves, but {fabric_name(pattern, first)}, of the first node, does not"
        return warn(finding, "compare this node's /etc/hosts and name servers with those of another node")
    return ok(f"{node} is {name}, {', '.join(found)} ({FABRIC_NAME}={pattern})")
