# SPDX-License-Identifier: BSD-3-Clause
"""Turns the plan of one task per node into that of torchrun's agent there."""

import sys

from pytorch_launch import LaunchError, is_number
from pytorch_launch.caches import SUBDIRECTORIES
from pytorch_launch.environment import AGENT_OPENMP, AGENT_THREADS, FABRIC_NAME, LAUNCH_ID, openmp_binding
from pytorch_launch.launchers import one_task_per_node

# torchrun starts each worker with it, so that a worker is bound and isolated like any rank. Two directories above
# `__main__`, as this module has no file if it is imported as compiled.
WORKER = sys.argv[0].rsplit("/", 2)[0] + "/conda-python-distributed"

OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


# torchrun's options that decide which agents meet, and those that take no value.
MEETING = ("standalone", "nnodes", "rdzv_endpoint")
FLAGS = ("standalone", "no_python", "m", "module", "run_path", "use_env", "virtual_local_rank", "h", "help")


class AgentError(LaunchError):
    """Tasks that cannot be agents of torchrun."""


def make_agent_plan(plan, arguments=()):
    """The Plan of the agent of torchrun on one node, and its arguments for Python. Raises AgentError.

    `plan` is that of a rank among the agents, so the size of its world is the number of nodes. The agent is not bound
    and makes no caches, as each worker has its own. `arguments` are the user's, which torchrun gets after these.
    """
    world = plan.world
    if world.exported:
        raise AgentError(f"this is a worker of {world.source} already", "use conda-python-distributed")
    if world.local_size != 1:
        raise AgentError(
            f"{world.source} has {world.local_size} tasks on {world.node}, but torchrun starts the ranks of a node",
            f"start one task per node: {one_task_per_node(plan.env)} torchrun-distributed",
        )
    _check_nodes(world, _options(arguments, plan.env))
    own_address, problem = _own_address(plan)
    agent = plan.replace(
        changes=_agent_changes(plan),
        bind=None,
        warnings=[*plan.warnings, *([problem] if problem else [])],
    )
    return agent, _torchrun_arguments(plan, own_address)


def _options(arguments, env):
    """torchrun's options that decide which agents meet, name to value, as the user gave them (torchrun(1))."""
    found = {name: env[f"PET_{name.upper()}"] for name in MEETING if env.get(f"PET_{name.upper()}", "0") != "0"}
    words = iter(arguments)
    for word in words:
        if not word.startswith("-"):
            break  # the script
        name, has_value, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        # argparse takes unique beginnings of options
        name = next((option for option in MEETING if option.startswith(name) and len(name) > 1), name)
        found[name] = value if has_value or name in FLAGS else next(words, "")
    return found


def _check_nodes(world, options):
    if world.size == 1 or "rdzv_endpoint" in options:
        return
    low, _, high = options.get("nnodes", "").partition(":")
    fault = None
    if "standalone" in options:
        fault = "--standalone is for one node"
    elif is_number(low) and is_number(high or low) and not int(low) <= world.size <= int(high or low):
        fault = f"--nnodes={options['nnodes']}"
    if fault:
        raise AgentError(
            f"{fault}, but {world.source} has {world.size} tasks, an agent each",
            "omit the option: the number of nodes is known, or start as many tasks as it has nodes",
        )


def _own_address(plan):
    """The address of this node for workers on others, as torchrun makes any node the first; and a Problem or None."""
    world = plan.world
    if not world.spans_nodes:
        return plan.place["MASTER_ADDR"], None
    if not plan.env.get(FABRIC_NAME):
        return world.node, None
    from pytorch_launch.fabric import choose_own_address

    address, problem = choose_own_address(plan.env, world.node)
    # if the first node has no such name either, its Problem is among the plan's
    return address, problem if plan.place["MASTER_ADDR"] != world.first_host else None


def _torchrun_arguments(plan, own_address):
    """torchrun(1)'s options; later ones, of the user, take precedence."""
    world, address = plan.world, plan.place["MASTER_ADDR"]
    endpoint = f"[{address}]" if ":" in address else address
    return [
        *("-m", "torch.distributed.run"),
        f"--nnodes={world.size}",
        f"--nproc-per-node={plan.devices.slots or max(1, plan.devices.count)}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint}:{plan.place['MASTER_PORT']}",
        f"--rdzv-id={plan.launch or 'local'}",
        # otherwise torchrun compares host names, which may have several spellings (pytorch#73656)
        f"--rdzv-conf=is_host={'true' if world.rank == 0 else 'false'}",
        # otherwise the address is that of a reverse look-up of this host's name
        f"--local-addr={own_address}",
    ]


def _agent_changes(plan):
    """The changes for the agent: torchrun sets the ranks' variables, and each worker makes its own caches."""
    ranks = {*plan.world.variables(), "MASTER_ADDR", "MASTER_PORT", LAUNCH_ID}
    workers = ranks.union(SUBDIRECTORIES)
    changes = {name: value for name, value in plan.changes.items() if name not in workers}
    changes["PYTHON_EXEC"] = WORKER
    # A store for each start of the workers. In a shared one they find each other by their agent's number of
    # restarts, which differs between nodes if one of them detected the fault first, and the restarted world never
    # forms (seen with torch 2.13; `test_a_worker_of_torchrun_that_is_killed...` fails then).
    changes[OWN_STORE] = plan.env.get(OWN_STORE) or "1"
    for name, value in openmp_binding(plan.env).items():
        changes.update({name: None, AGENT_OPENMP + name: value})
    if "OMP_NUM_THREADS" in changes:
        changes[AGENT_THREADS] = changes["OMP_NUM_THREADS"]
    # of the rendezvous, or left over: torchrun sets its own
    changes.update({name: None for name in ranks if plan.env.get(name)})
    return changes
