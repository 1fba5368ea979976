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

# Variables by which OpenMP binds threads to cores. libgomp does so as soon as torch is imported: the main thread, and
# all processes that it starts, get one core (pytorch/pytorch#91989, #99625). The agent of torchrun starts without them,
# and its workers restore them from variables of these names with a prefix.
OPENMP_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
AGENT_OPENMP = "PYTORCH_LAUNCH_AGENT_"

# The name of this launch, by which a program can detect ranks of another launch at the rendezvous.
LAUNCH_ID = "PYTORCH_LAUNCH_ID"

# Variables of earlier releases, each with the page that has its replacement.
REMOVED = {"PYTORCH_LAUNCH_LOG_DIR": "docs/logs.md", "PYTORCH_LAUNCH_STAGE": "docs/staging.md"}


def compute_variables(env, world, *, threads, devices, place, launch):
    """The variables of a rank of `world`, name to value; None for one to unset.

    Exported values in `env` take precedence. `threads` is the number of physical cores that the rank has, `devices`
    its Devices, `place` what `choose_rendezvous` returned and `launch` what `launch_id` did.
    """
    decided = {**devices.changes, **conditional(env, world)}
    if not world.exported:
        decided.update(world.variables())
        decided.update(place)
        if world.size > 1:
            decided[LAUNCH_ID] = launch
    if env.get("OMP_NUM_THREADS", "") in ("", env.get(AGENT_THREADS)):
        decided["OMP_NUM_THREADS"] = str(threads)
    if AGENT_THREADS in env:
        decided[AGENT_THREADS] = None
    for name in OPENMP_BINDING:
        if AGENT_OPENMP + name in env:
            decided.update({name: env.get(name) or env[AGENT_OPENMP + name], AGENT_OPENMP + name: None})
    return decided


def openmp_binding(env):
    """The variables by which OpenMP binds threads to cores, name to value; none if it binds nothing."""
    if env.get("OMP_PROC_BIND", "").lower() == "false":
        return {}
    return {name: env[name] for name in OPENMP_BINDING if env.get(name, "").lower() not in ("", "none", "disabled")}


def openmp_warnings(env, cpus):
    """A list of Problems: a rank with several `cpus`, of which OpenMP leaves one to the processes that it starts."""
    binding = openmp_binding(env)
    if len(cpus) == 1 or not binding:
        return []
    values = " ".join(f"{name}={value}" for name, value in binding.items())
    fault = f"{values} binds each rank, and the processes that it starts, such as workers of a DataLoader, to one core"
    return [Problem(fault, f"Unset {' and '.join(binding)}")]


def removed(env):
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
    prefixes = [DISTRIBUTED] if world.size > 1 else []
    if world.spans_nodes:
        prefixes.insert(0, MULTI_NODE)
    elif world.allocation[1] == 1:  # otherwise it may launch ranks on all nodes, which inherit its environment
        prefixes.insert(0, ONE_NODE)
    found = [(name[len(each) :], env[name]) for each in prefixes for name in env if name.startswith(each)]
    return {name: value for name, value in found if is_name(name) and name not in env}


def statements(changes):
    """Lines of a POSIX shell for `source` that set the variables of `changes`, and unset those that are None."""
    lines = []
    for name, value in sorted(changes.items()):
        quoted = (value or "").replace("'", "'\\''")
        lines.append(f"unset {name}\n" if value is None else f"export {name}='{quoted}'\n")
    return "".join(lines)


def failure(status):
    """A line that ends `source` with `status`, without ending the shell; `launch.bash` has the same."""
    return f"return {status} 2>/dev/null || (exit {status})\n"
