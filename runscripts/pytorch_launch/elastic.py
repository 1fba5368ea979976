# SPDX-License-Identifier: BSD-3-Clause
"""Turns the plan of one task per node into that of torchrun's agent there."""

import sys

from pytorch_launch import LaunchError, is_number
from pytorch_launch.caches import SUBDIRECTORIES
from pytorch_launch.launchers import OF_NODES, ONE_PER_NODE, launcher_option
from pytorch_launch.plan import openmp_binding
from pytorch_launch.world import AGENT, FABRIC_NAME, LAUNCH_ID

# torchrun starts each worker with it, so that a worker is bound and isolated like any rank. Two directories above
# `__main__`, as this module has no file if it is imported as compiled.
WORKER = sys.argv[0].rsplit("/", 2)[0] + "/conda-python-distributed"

OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"

# torchrun's options that decide which agents meet, and those that take no value.
MEETING = ("standalone", "nnodes", "rdzv_endpoint", "master_addr")
# Those that name a place.
PLACES = {"rdzv_endpoint", "master_addr"}
FLAGS = ("standalone", "no_python", "m", "module", "run_path", "use_env", "virtual_local_rank", "h", "help")


def make_agent_plan(plan, arguments=()):
    """The Plan of the agent of torchrun on one node, and its arguments for Python. Raises LaunchError.

    `plan` is that of a rank among the agents, so the size of its world is the number of nodes. The agent is not bound
    and makes no caches, as each worker has its own. `arguments` are the user's, which torchrun gets after these.
    """
    env, world, address = plan.env, plan.world, (plan.place or {}).get("MASTER_ADDR")
    if world.exported:
        raise LaunchError(f"this is a worker of {world.source} already", "use conda-python-distributed")
    if world.local_size != 1:
        fault = f"{world.source} has {world.local_size} tasks on {world.node}, but torchrun starts the ranks of a node"
        remedy = f"start one task per node: {launcher_option(env, ONE_PER_NODE)} torchrun-distributed"
        raise LaunchError(fault, remedy)
    given = meeting_options(arguments, env)
    _check_options(given, world)
    # of this node, for workers on others, as torchrun makes any node the first
    own_address, problem = world.node if world.spans_nodes else address, None
    if world.spans_nodes and env.get(FABRIC_NAME):
        from pytorch_launch.fabric import choose_address

        own_address, problem = choose_address(env, world.node, world.node, is_here=True)
        if address == world.first_host:
            problem = None  # the first node has no such name either, its Problem is among the plan's
    warnings = [*plan.warnings, *([problem] if problem else [])]
    agent = plan.replace(changes=_agent_changes(plan), bind=None, warnings=warnings)
    endpoint = f"[{address}]" if ":" in address else address
    options = {  # torchrun(1)
        "nnodes": world.size,
        "nproc-per-node": max(1, plan.devices.count),
        "rdzv-backend": "c10d",
        "rdzv-endpoint": f"{endpoint}:{plan.place['MASTER_PORT']}",
        "rdzv-id": plan.launch or "local",
        # otherwise torchrun compares host names, which may have several spellings (pytorch#73656)
        "rdzv-conf": f"is_host={'true' if world.rank == 0 else 'false'}",
        # otherwise the address is that of a reverse look-up of this host's name
        "local-addr": own_address,
    }
    if world.size == 1 and PLACES.intersection(given):  # on several nodes that do not know each other
        options = {name: options[name] for name in ("nproc-per-node", "rdzv-backend")[: 1 + ("rdzv_endpoint" in given)]}
    # the user's take precedence: options as later ones, and torchrun's variables
    ours = [(name, value) for name, value in options.items() if not env.get(f"PET_{name.replace('-', '_').upper()}")]
    return agent, ["-m", "torch.distributed.run", *(f"--{name}={value}" for name, value in ours)]


def meeting_options(arguments, env):
    """torchrun's options that decide which agents meet, name to value, as the user gave them (torchrun(1))."""
    options = {name: env[f"PET_{name.upper()}"] for name in MEETING if env.get(f"PET_{name.upper()}", "0") != "0"}
    words = iter(arguments)
    for word in words:
        if not word.startswith("-"):
            break  # the script
        name, has_value, value = word.lstrip("-").partition("=")
        if len(word) > 2 and word[1] != "-":
            continue  # a letter with its value, as -r3
        name = name.replace("-", "_")
        # argparse takes unique beginnings of options
        name = next((option for option in MEETING if option.startswith(name) and len(name) > 1), name)
        if name in MEETING:
            options[name] = value if has_value or name in FLAGS else next(words, "")
        elif not (has_value or name in FLAGS):
            next(words, "")
    return options


def known_marks(arguments, env):
    """Variables of nodes that this command may have: torchrun's own; all if the user says where nodes meet, or not."""
    return OF_NODES if {"standalone", *PLACES}.intersection(meeting_options(arguments, env)) else OF_NODES[:1]


def _check_options(given, world):
    """Raise LaunchError if the user's options, or their variables, are for another number of nodes."""
    low, _, high = given.get("nnodes", "").partition(":")
    is_range = is_number(low) and is_number(high or low)
    # at more tasks than one, torchrun reads our endpoint in place of --master-addr
    if "rdzv_endpoint" in given or (world.size == 1 and PLACES.intersection(given)):
        return
    if "standalone" in given and world.size > 1:
        fault = "--standalone is for one node"
    elif is_range and not int(low) <= world.size <= int(high or low):
        fault = f"--nnodes={given['nnodes']}"
    else:
        return
    fault += f", but {world.source} has {world.size} task{'s' * (world.size > 1)}, an agent each"
    raise LaunchError(fault, "omit the option: the number of nodes is known, or start as many tasks as it has nodes")


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
        changes.update({name: None, AGENT + name: value})
    if "OMP_NUM_THREADS" in changes:
        changes[f"{AGENT}THREADS"] = changes["OMP_NUM_THREADS"]
    changes[f"{AGENT}CPUS"] = str(len(plan.placement.node.allowed))
    # of the rendezvous, or left over: torchrun sets its own
    changes.update({name: None for name in ranks if plan.env.get(name)})
    return changes
