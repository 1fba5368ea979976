# SPDX-License-Identifier: BSD-3-Clause
"""Turns the plan of one task per node into that of torchrun's agent there."""

import os

from pytorch_launch import LaunchError, Record, is_number
from pytorch_launch.caches import SUBDIRECTORIES
from pytorch_launch.openmp import openmp_binding
from pytorch_launch.plan import NO_DUMPS, THREADS
from pytorch_launch.world import AGENT, FABRIC_NAME, LAUNCH_ID

# torchrun starts each worker with it, so that a worker is bound and isolated like any rank.
WORKER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "conda-python-distributed")

OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"

#: Options of torchrun that take no value.
FLAGS = ("standalone", "no_python", "m", "module", "run_path", "use_env", "virtual_local_rank", "h", "help")
# What --nproc-per-node can be besides a number (torch.distributed.run, determine_local_world_size).
KINDS = ("auto", "cpu", "gpu", "xpu")


class Options(Record):
    """torchrun's options that are read here, as the user gave them, None for each that is not given (torchrun(1))."""

    fields = "standalone nnodes rdzv_endpoint master_addr nproc_per_node"
    defaults = dict.fromkeys(fields.split())  # noqa: RUF012

    @property
    def names_a_place(self):
        """Whether the user says where several nodes meet."""
        return self.rdzv_endpoint is not None or self.master_addr is not None

    @property
    def decides_meeting(self):
        """Whether the user says which agents meet, and where."""
        return self.names_a_place or self.standalone is not None or self.nnodes is not None


def read_options(arguments, env):
    """The Options in the arguments of torchrun, and in its variables."""
    options = {}
    for name in Options.defaults:
        value = env.get(f"PET_{name.upper()}")
        if value and value != "0":
            options[name] = value
    options.update(_options_before_script(arguments))
    return Options(**options)


def _options_before_script(arguments):
    options = {}
    words = iter(arguments)
    for word in words:
        if not word.startswith("-"):
            break  # the script
        if len(word) > 2 and word[1] != "-":
            continue  # a letter with its value, as -r3
        name, has_value, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not has_value and name not in FLAGS:
            value = next(words, "")
        if name in Options.defaults:
            options[name] = value
    return options


def make_agent_plan(env, plan, given):
    """The Plan of the agent of torchrun on one node, and its arguments for Python. Raises LaunchError.

    `plan` is that of a rank among the agents, so the size of its world is the number of nodes. The agent is not bound
    and makes no caches, as each worker has its own. torchrun gets the user's options, `given`, after these.
    """
    world = plan.world
    if world.exported:
        raise LaunchError(f"this is a worker of {world.source} already", "use conda-python-distributed")
    if world.local_size != 1:
        fault = f"{world.source} has {world.local_size} tasks on {world.node}, but torchrun starts the ranks of a node"
        remedy = f"start one task per node: {world.launcher.one_task_per_node} torchrun-distributed"
        raise LaunchError(fault, remedy)
    _check_values(given)
    _check_nodes(given, world)
    own_address, problems = _own_address(env, plan)
    options = {}
    for name, value in _options(plan, given, own_address).items():
        if not env.get(f"PET_{name.replace('-', '_').upper()}"):  # torchrun's variables
            options[name] = value
    agent = plan._replace(
        changes=_agent_changes(env, plan),
        placement=plan.placement._replace(bind=None),
        caches=None,
        dumps=NO_DUMPS,
        warnings=plan.warnings + problems,
    )
    return agent, ["-m", "torch.distributed.run", *(f"--{name}={value}" for name, value in options.items())]


def _own_address(env, plan):
    """The address of this node for workers on others, as torchrun makes any node the first; and Problems."""
    world = plan.world
    if not world.spans_nodes:
        return plan.place.address, []
    if not env.get(FABRIC_NAME):
        return world.node, []
    from pytorch_launch.fabric import choose_address

    address, problem = choose_address(env, world.node, world.node, is_here=True)
    if problem is None or plan.place.address == world.first_host:  # then the plan has a Problem of this kind already
        return address, []
    return address, [problem]


def _options(plan, given, own_address):
    """The options of torchrun(1), name to value."""
    world = plan.world
    address = plan.place.address
    if ":" in address:
        address = f"[{address}]"
    options = {"nproc-per-node": max(1, plan.devices.count)}
    if world.size == 1 and given.names_a_place:  # one of several nodes that do not know each other
        if given.rdzv_endpoint is not None:
            options["rdzv-backend"] = "c10d"
        return options
    return {
        "nnodes": world.size,
        **options,
        "rdzv-backend": "c10d",
        "rdzv-endpoint": f"{address}:{plan.place.port}",
        "rdzv-id": plan.place.launch or "local",
        # otherwise torchrun compares host names, which may have several spellings (pytorch#73656)
        "rdzv-conf": f"is_host={str(world.rank == 0).lower()}",
        # otherwise the address is that of a reverse look-up of this host's name
        "local-addr": own_address,
    }


def _check_values(given):
    """Raise LaunchError for values for which torchrun prints a traceback."""
    ranks = given.nproc_per_node or "auto"
    if not is_number(ranks) and ranks not in KINDS:
        raise LaunchError(f"--nproc-per-node={ranks} is neither a number nor one of {', '.join(KINDS)}", "correct it")
    nodes = given.nnodes or "1"
    if not all(map(is_number, nodes.split(":"))):
        raise LaunchError(f"--nnodes={nodes} is not a number of nodes, or a range such as 1:4", "correct it")


def _check_nodes(given, world):
    """Raise LaunchError if the user's options, or their variables, are for another number of nodes."""
    # at more tasks than one, torchrun reads our endpoint in place of --master-addr
    if given.rdzv_endpoint is not None or (world.size == 1 and given.names_a_place):
        return
    fault = None
    if given.standalone is not None and world.size > 1:
        fault = "--standalone is for one node"
    elif not _includes(given.nnodes, world.size):
        fault = f"--nnodes={given.nnodes}"
    if fault is not None:
        tasks = f"{world.size} tasks"
        if world.size == 1:
            tasks = "1 task"
        remedy = "omit the option: the number of nodes is known, or start as many tasks as it has nodes"
        raise LaunchError(f"{fault}, but {world.source} has {tasks}, an agent each", remedy)


def _includes(nnodes, nodes):
    """Whether `nodes` is within --nnodes, a number or a range; anything is if that is not given."""
    if nnodes is None:
        return True
    low, _, high = nnodes.partition(":")
    return int(low) <= nodes <= int(high or low)


def _agent_changes(env, plan):
    """The changes for the agent: torchrun sets the ranks' variables, and each worker makes its own caches."""
    ranks = {*plan.world.variables(), "MASTER_ADDR", "MASTER_PORT", LAUNCH_ID}
    workers = {*ranks, *SUBDIRECTORIES, *plan.dumps.variables}
    changes = {name: value for name, value in plan.changes.items() if name not in workers}
    changes["PYTHON_EXEC"] = WORKER
    # A store for each start of the workers. In a shared one they find each other by their agent's number of
    # restarts, which differs between nodes if one of them detected the fault first, and the restarted world never
    # forms (seen with torch 2.13; `test_a_worker_of_torchrun_that_is_killed...` fails then).
    changes[OWN_STORE] = env.get(OWN_STORE) or "1"
    for name, value in openmp_binding(env).items():
        changes[name] = None
        changes[AGENT + name] = value
    if THREADS in changes:
        changes[f"{AGENT}THREADS"] = changes[THREADS]
    changes[f"{AGENT}CPUS"] = str(len(plan.placement.cpus))
    for name in ranks:  # of the rendezvous, or left over: torchrun sets its own
        if env.get(name):
            changes[name] = None
    return changes
