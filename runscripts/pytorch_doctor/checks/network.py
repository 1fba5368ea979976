# SPDX-License-Identifier: BSD-3-Clause
"""Checks the cards of the fast network between nodes."""

from pytorch_doctor import fail, not_applicable, ok, warn

#: The cards in /sys by the values of PYTORCH_FAST_NETWORK.
CARDS = {"cxi": "/sys/class/cxi", "ib": "/sys/class/infiniband"}
#: Variables and values with which NCCL does not use a network.
AVOIDED = {
    "cxi": {"NCCL_NET": "socket", "PYTORCH_MULTI_NODE_NCCL_NET": "socket", "NCCL_NET_PLUGIN": "none"},
    "ib": {"NCCL_NET": "socket", "PYTORCH_MULTI_NODE_NCCL_NET": "socket", "NCCL_IB_DISABLE": "1"},
}


def check_network(here):
    """Whether the cards of the fast network exist, and what NCCL needs to use them."""
    network = here.env.get("PYTORCH_FAST_NETWORK", "").lower()
    if network not in CARDS or here.gpu is None:
        return not_applicable("the profile sets no fast network, or no module for GPUs is loaded")
    for name, value in AVOIDED[network].items():
        if here.env.get(name, "").lower() == value:
            return warn(f"{name}={here.env[name]} prevents NCCL from using {network}", f"unset {name}")
    cards = here.names(CARDS[network])
    if not cards and not here.trains_here:
        return not_applicable(f"no {CARDS[network]}, which login nodes may lack")
    if not cards:
        remedy = "if the profile is for this cluster, the node is broken: compare it with another one"
        return fail(f"no card for {network}: {CARDS[network]} is empty", remedy)
    if network == "ib":
        return check_ports(here, cards)
    facts, _ = here.torch
    if facts and not facts["plugin"]:
        remedy = "load the site's module of aws-ofi-nccl or aws-ofi-rccl, or use an image that has it"
        return fail(f"{cards[0]} exists, but NCCL's plugin for libfabric does not (libnccl-net.so)", remedy)
    return ok(f"cxi: {', '.join(cards)}")


def check_ports(here, cards):
    """Whether each InfiniBand or RoCE card has a port that is up: `4: ACTIVE` (ABI/stable/sysfs-class-infiniband)."""
    down = []
    for card in cards:
        ports = f"{CARDS['ib']}/{card}/ports"
        if not any(str(here.read(f"{ports}/{port}/state")).endswith("ACTIVE") for port in here.names(ports)):
            down.append(card)
    if not down:
        return ok(f"ib: {', '.join(cards)}")
    remedy = "if these should be active, exclude this node, and report it to the site; else set NCCL_IB_HCA"
    verdict = fail if down == cards else warn
    return verdict(f"no active port: {', '.join(down)} of {', '.join(cards)}", remedy)
