# SPDX-License-Identifier: BSD-3-Clause
"""Computes the variables with which one rank starts Python."""

from pytorch_launch import Problem

# Prefixes of the variables that a module sets for some worlds only, as the world is not known when it is
# loaded: PYTORCH_MULTI_NODE_NCCL_NET becomes NCCL_NET if the ranks are on more than one node, PYTORCH_ONE_NODE_NCCL_NET
# if all of them are on one.
MULTI_NODE = "PYTORCH_MULTI_NODE_"
ONE_NODE = "PYTORCH_ONE_NODE_"
DISTRIBUTED = "PYTORCH_DISTRIBUTED_"

# How a node is called on the fast network, with `*` for its name up to the first dot; and the interfaces there by exact
# names, separated by blanks, in order of preference. `fabric` reads both.
FABRIC_NAME = "PYTORCH_FABRIC_NAME"
SOCKET_IFNAME = "PYTORCH_SOCKET_IFNAME"

# The OMP_NUM_THREADS that `torchrun-distributed` exported, so that its workers can tell it from the user's.
AGENT_THREADS = "PYTORCH_LAUNCH_AGENT_THREADS"

# The name of this launch, by which a program can detect ranks of another launch at the rendezvous.
LAUNCH_ID = "PYTORCH_LAUNCH_ID"

# Variables of earlier releases, each with the page that has its replacement.
REMOVED = {"PYTORCH_LAUNCH_LOG_DIR": "docs/logs.md", "PYTORCH_LAUNCH_STAGE": "docs/staging.md"}


def compute_variables(env, world, *, threads, devices, place, launch):
    """The variables of a rank of `world`, name to value; None for one to unset.

    Exported values in `env` take precedence. `threads` is the number of physical cores that the rank has, `devices`
    its Devices, `place` what `choose_rendezvous` returned and `launch` what `launch_id` did.
    """
    decided = dict(devices.changes)
    decided.update(conditional(env, world))
    if not world.exported:
        decided.update(world.variables())
        decided.update(place)
        if world.size > 1:
            decided[LAUNCH_ID] = launch
    exported = env.get("OMP_NUM_THREADS")
    if not exported or exported == env.get(AGENT_THREADS):
        decided["OMP_NUM_THREADS"] = str(threads)
    if AGENT_THREADS in env:
        decided[AGENT_THREADS] = None
    return decided


def removed(env):
    """A list of Problems: variables that had an effect in earlier releases."""
    return [
        Problem(f"{name} has no effect any longer", f"see {page}")
        for name, page in REMOVED.items()
        if env.get(name, "0") not in ("", "0")
    ]


def is_name(text):
    """Whether a shell can have a variable of this name; env(1) also sets others."""
    return text.isidentifier() and len(text.encode()) == len(text)  # str.isascii came with Python 3.7


def conditional(env, world):
    """The module's variables for worlds like this one, without those that the user has exported."""
    prefixes = []
    if world.spans_nodes:
        prefixes.append(MULTI_NODE)
    elif world.allocation[1] == 1:  # otherwise it may launch ranks on all nodes, which inherit its environment
        prefixes.append(ONE_NODE)
    if world.size > 1:
        prefixes.append(DISTRIBUTED)
    return {
        name[len(prefix) :]: value
        for prefix in prefixes
        for name, value in env.items()
        if name.startswith(prefix) and is_name(name[len(prefix) :]) and name[len(prefix) :] not in env
    }
