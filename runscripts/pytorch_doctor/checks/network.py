# SPDX-License-Identifier: BSD-3-Clause
"""Checks the fast network between nodes, the interfaces that the profile names, and the names of nodes on it."""

import platform

from pytorch_launch import LaunchError
from pytorch_launch.fabric import TAKERS, choose_address, choose_interface
from pytorch_launch.world import FABRIC_NAME, SOCKET_IFNAME, node_name

from pytorch_doctor import fail, not_applicable, ok, warn

#: The cards in /sys by the values of PYTORCH_FAST_NETWORK.
CARDS = {"cxi": "/sys/class/cxi", "ib": "/sys/class/infiniband"}
#: Variables and values with which NCCL does not use a network; a job on one node needs none.
AVOIDED = (
    *(("NCCL_NET", "socket", CARDS), ("PYTORCH_MULTI_NODE_NCCL_NET", "socket", CARDS)),
    *(("NCCL_NET_PLUGIN", "none", ["cxi"]), ("NCCL_IB_DISABLE", "1", ["ib"])),
)
NONE_SET = "none is set; torch uses the first one that is up"
ELSEWHERE = "if the profile is for this cluster, the node is broken: compare it with another one"


def check_interfaces(here):
    """Whether the interfaces exist that NCCL and gloo are set to use, here or by the runscripts in a job."""
    present = here.names("/sys/class/net")
    by_runscripts, problem = choose_interface(here.env, "this node", here.root)
    if problem and here.trains_here:
        return warn(problem.fault, problem.remedy)
    named = {name: here.env[name] for name in TAKERS if here.env.get(name)}
    named.update(by_runscripts)
    if not named:
        text = f"{SOCKET_IFNAME}={here.env[SOCKET_IFNAME]} is for compute nodes" if problem else NONE_SET
        return not_applicable(text)
    for variable, value in named.items():
        chosen = find_chosen(variable, value, present)
        if not chosen:
            finding = f"{variable}={value} matches no interface: here are {' '.join(present)}"
            if not here.trains_here:
                return not_applicable(finding + ", a login node's")
            return fail(finding, f"export {variable}=<one of these>, or unset it; {ELSEWHERE}")
        down = [name for name in chosen if here.read(f"/sys/class/net/{name}/operstate") == "down"]
        # a list of interfaces to exclude does not require all others
        if down and (len(down) == len(chosen) or not value.startswith("^")):
            return warn(f"{variable}={value}: {' '.join(down)} is down", ELSEWHERE)
    return ok(", ".join("=".join(item) for item in named.items()))


def find_chosen(variable, value, present):
    """The interfaces among `present` that a variable chooses; gloo fails unless it has all of a list of names.

    NCCL takes prefixes of names, `=` for exact names, `^` for all others
    (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html, NCCL_SOCKET_IFNAME;
    https://docs.pytorch.org/docs/stable/distributed.html, "Choosing the network interface to use").
    """
    if variable.startswith("GLOO"):
        return [name for name in value.split(",") if set(value.split(",")) <= set(present)]
    exclude = value.startswith("^")
    exact = value[exclude:].startswith("=")
    names = tuple(value[exclude + exact :].split(","))
    return [name for name in present if (name in names if exact else name.startswith(names)) != exclude]


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
    for name, value, networks in () if here.env.get("SLURM_JOB_NUM_NODES") == "1" else AVOIDED:
        if here.env.get(name, "").lower() == value and expected.lower() in networks:
            return fail(f"{name}={here.env[name]} prevents NCCL from using {expected}", f"unset {name}")
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
        missing = here.env.get("NCCL_NET_PLUGIN") or "libnccl-net.so or librccl-net.so"
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


def check_fabric(here):
    """Whether this node has the name on the fast network that the profile describes."""
    pattern = here.env.get(FABRIC_NAME)
    if not pattern or not here.trains_here:
        return not_applicable(f"{FABRIC_NAME} is for compute nodes" if pattern else "the profile sets no names")
    node = node_name(here.env, platform.node())
    try:
        name, problem = choose_address(here.env, node, node, is_here=True)
    except LaunchError as error:
        return fail(error.fault, error.remedy)
    return warn(problem.fault, problem.remedy) if problem else ok(f"{node} is {name} ({FABRIC_NAME}={pattern})")
