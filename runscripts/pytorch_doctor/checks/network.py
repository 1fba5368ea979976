# SPDX-License-Identifier: BSD-3-Clause
"""Checks the interfaces that the profile names, and the fast network between nodes."""

from pytorch_launch.environment import ONE_NODE, SOCKET_IFNAME
from pytorch_launch.fabric import choose_interface, find_interface, list_faults

from pytorch_doctor import fail, not_applicable, ok, warn

#: The cards in /sys by the values of PYTORCH_FAST_NETWORK.
CARDS = {"cxi": "/sys/class/cxi", "ib": "/sys/class/infiniband"}
ELSEWHERE = "if the profile is for this cluster, the node is broken: compare it with another one"


def check_interfaces(here):
    """Whether the interfaces exist that NCCL and gloo are set to use, here or by the runscripts in a job."""
    present = here.names("/sys/class/net")
    by_runscripts, problem = choose_interface(here.env, "this node", here.root)
    if problem and here.trains_here:
        return warn("interfaces", problem.fault, problem.remedy)
    named = {name: here.env[name] for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if here.env.get(name)}
    named.update(by_runscripts)
    if not named:
        if problem:
            return not_applicable("interfaces", f"{SOCKET_IFNAME}={here.env[SOCKET_IFNAME]} is for compute nodes")
        return not_applicable("interfaces", "none is set; torch uses the first one that is up")
    for variable, value in named.items():
        chosen = chosen_by_nccl(value, present) if variable.startswith("NCCL") else chosen_by_gloo(value, present)
        if not chosen:
            finding = "{}={} matches no interface: here are {}".format(variable, value, " ".join(present))
            if not here.trains_here:
                return not_applicable("interfaces", finding + ", a login node's")
            return fail("interfaces", finding, f"export {variable}=<one of these>, or unset it; {ELSEWHERE}")
        down = [name for name in chosen if here.read(f"/sys/class/net/{name}/operstate") == "down"]
        # a list of interfaces to exclude does not require all others
        if down and (len(down) == len(chosen) or not value.startswith("^")):
            return warn("interfaces", "{}={}: {} is down".format(variable, value, " ".join(down)), ELSEWHERE)
    return ok("interfaces", ", ".join("{}={}".format(*item) for item in named.items()) + _reason(here, by_runscripts))


def _reason(here, by_runscripts):
    """Why the runscripts choose an interface, "" if they choose none."""
    if not by_runscripts:
        return ""
    name, faults = find_interface(here.env, here.root)
    passed = f"; {list_faults(faults)}" if faults else ""
    return f" ({name} is the first of {SOCKET_IFNAME} that is up{passed})"


def chosen_by_nccl(value, present):
    """The interfaces that NCCL uses: prefixes of names, `=` for exact names, `^` for all others.

    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html, NCCL_SOCKET_IFNAME.
    """
    exclude = value.startswith("^")
    value = value[exclude:]
    exact = value.startswith("=")
    names = value[exact:].split(",")
    return [
        interface
        for interface in present
        if any(interface == name if exact else interface.startswith(name) for name in names) != exclude
    ]


def chosen_by_gloo(value, present):
    """The interfaces that gloo uses: all of a list of names, or it fails.

    https://docs.pytorch.org/docs/stable/distributed.html, "Choosing the network interface to use".
    """
    names = value.split(",")
    return names if all(name in present for name in names) else []


def check(here):
    """Whether the cards of the fast network exist, and what NCCL needs to use them."""
    expected = here.env.get("PYTORCH_FAST_NETWORK")
    if not expected:
        return not_applicable("network", "the profile sets no fast network")
    if here.module and here.gpu is None:
        return not_applicable("network", f"only NCCL uses {expected}, and the module is for CPUs")
    directory = CARDS.get(expected.lower())
    if directory is None:
        return not_applicable("network", f"unknown PYTORCH_FAST_NETWORK={expected}")
    on_one_node = here.env.get("SLURM_JOB_NUM_NODES") == "1" and here.env.get(ONE_NODE + "NCCL_NET")
    exported = here.env.get("NCCL_NET")
    if on_one_node and exported and exported.lower() != on_one_node.lower():
        finding = f"NCCL_NET={exported} is exported, but in a job on one node the profile sets {on_one_node}"
        return warn("network", finding, f"export NCCL_NET={on_one_node}, and keep the other value for several nodes")
    avoided = None if on_one_node and exported else _avoided(here.env, expected)
    if avoided:
        return fail("network", f"{avoided} prevents NCCL from using {expected}", "unset " + avoided.split("=")[0])
    cards = here.names(directory)
    if not cards:
        if not here.trains_here:
            return not_applicable("network", f"no {directory}, which login nodes may lack")
        return fail("network", f"no card for {expected}: {directory} is empty", ELSEWHERE)
    down = [card for card in cards if expected.lower() == "ib" and not _is_active(here, directory + "/" + card)]
    if len(down) == len(cards):
        finding = "no port of {} is active".format(", ".join(cards))
        return fail("network", finding, "exclude this node, and report it to the site")
    if expected == "cxi" and here.module and here.gpu:
        facts, _ = here.torch
        if facts and not facts["plugin"]:
            named = here.env.get("NCCL_NET_PLUGIN")
            missing = f"NCCL_NET_PLUGIN={named}" if named else "libnccl-net.so nor librccl-net.so"
            return fail(
                "network",
                f"{cards[0]} exists, but NCCL's plugin for libfabric does not: no {missing}",
                "load the site's module of aws-ofi-nccl or aws-ofi-rccl, or use an image that has it",
            )
    if down:
        finding = "{} of {} cards have no active port: {}".format(len(down), len(cards), ", ".join(down))
        remedy = "set NCCL_IB_HCA to the others; if these should be active, report it to the site"
        return warn("network", finding, remedy)
    return ok("network", "{}: {}".format(expected, ", ".join(cards)))


def _is_active(here, card):
    """Whether a port of an InfiniBand or RoCE card is up: `4: ACTIVE` (Linux, ABI/stable/sysfs-class-infiniband)."""
    ports = here.names(card + "/ports")
    return any((here.read(f"{card}/ports/{port}/state") or "").endswith("ACTIVE") for port in ports)


def _avoided(env, expected):
    """A variable that turns the fast network off, as NAME=value; None without one."""
    for name in ("NCCL_NET", "PYTORCH_MULTI_NODE_NCCL_NET"):
        if env.get(name, "").lower() == "socket":
            return f"{name}={env[name]}"
    if expected.lower() == "cxi" and env.get("NCCL_NET_PLUGIN", "").lower() == "none":
        return "NCCL_NET_PLUGIN=" + env["NCCL_NET_PLUGIN"]
    if expected.lower() == "ib" and env.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        return "NCCL_IB_DISABLE=" + env["NCCL_IB_DISABLE"]
    return None
