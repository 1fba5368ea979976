# SPDX-License-Identifier: BSD-3-Clause
"""Decides everything for one rank, once and without side effects.

This is the flow: world, place, hardware, environment. Each part reads the variables that it needs; later functions take
the Plan.
"""

from pytorch_launch import LaunchError, Problem, Record
from pytorch_launch.active import choose_python
from pytorch_launch.caches import choose_caches
from pytorch_launch.container import check_directory
from pytorch_launch.cores import choose_cores
from pytorch_launch.devices import choose_devices
from pytorch_launch.flight import Dumps, choose_dumps
from pytorch_launch.isolation import isolate, shadowing
from pytorch_launch.launchers import programs_of_mpi, submit_directory
from pytorch_launch.launchers.discovery import discover
from pytorch_launch.openmp import choose_openmp
from pytorch_launch.rendezvous import check_exported_address, choose_place, file_name
from pytorch_launch.topology import read_node
from pytorch_launch.world import (
    AGENT,
    DISTRIBUTED,
    FABRIC_NAME,
    LAUNCH_ID,
    MULTI_NODE,
    ONE_NODE,
    SOCKET_IFNAME,
    VIRTUAL,
)

#: The variables that decide how many threads a rank has.
THREADS = "OMP_NUM_THREADS"

#: Of ranks without the flight recorder.
NO_DUMPS = Dumps(None, {})


class Meeting(Record):
    """The Place; variables that name network interfaces; and Problems of this rank and of its node."""

    fields = "place interfaces warnings warnings_of_node"


class Plan(Record):
    """The decisions for one rank.

    `world`       the World
    `place`       the Place where its ranks meet
    `devices`     the Devices
    `placement`   the Placement on CPUs; `bind` there is what to bind this process to
    `python`      the active environment whose Python runs, None for the module's
    `caches`      the Caches to make, None for torchrun's agent
    `dumps`       the Dumps to make
    `changes`     variables to set before Python starts, None for one to unset
    `warnings`    Problems, without those that another rank reports
    """

    fields = "world place devices placement python caches dumps changes warnings"


def make_plan(env, node=None, *, virtual=False):
    """The Plan of the process with environment `env` on this node, or on another Node.

    `virtual` gives it LOCAL_RANK=0 and only its own GPU. Raises LaunchError.
    """
    check_directory(env, submit_directory(env))
    node = node or read_node(programs=programs_of_mpi())
    world = discover(env, node.host)
    own = {name: value for name, value in env.items() if name not in world.strays}
    if virtual:
        own[VIRTUAL] = "1"
    meeting = _choose_meeting(own, world, node)

    devices = choose_devices(own, node, world)
    placement = choose_cores(node, world, devices, world.launcher.more_cores)
    openmp, openmp_warnings = choose_openmp(own, world, placement.cpus)

    python, caches = _choose_directories(own, world, node)
    isolated, isolation_warnings = isolate(own)
    dumps = _choose_dumps(own, world, meeting.place, devices)

    decided = dict.fromkeys(world.strays)
    variables = _variables(own, world, meeting.place, devices, placement)
    for changes in (variables, openmp, meeting.interfaces, caches.variables, isolated, python.changes, dumps.variables):
        decided.update(changes)

    of_rank = list(world.problems) + meeting.warnings
    of_node = caches.warnings + placement.warnings + devices.warnings + meeting.warnings_of_node
    of_launch = isolation_warnings
    if python.prefix is None:
        of_launch += shadowing(own)
    if not world.exported:  # torchrun-distributed has reported these
        of_launch += python.warnings
    if openmp or not world.exported:
        of_launch += openmp_warnings
    return Plan(
        world=world,
        place=meeting.place,
        devices=devices,
        placement=placement,
        python=python.prefix,
        caches=caches,
        dumps=dumps,
        changes={name: value for name, value in decided.items() if env.get(name) != value},
        warnings=_reported(world, of_rank, of_node, of_launch),
    )


def _choose_directories(env, world, node):
    """The Choice of Python, and the Caches. Raises LaunchError."""
    try:
        return choose_python(env), choose_caches(env, node.uid, f"{world.job or 'local'}-{world.node}")
    except LaunchError as error:
        error.rank = world.local_rank  # the first rank of each node reports it
        raise


def _choose_meeting(env, world, node):
    place = choose_place(env, world, node)
    warnings = check_exported_address(env, world)
    if not world.spans_nodes or not (env.get(FABRIC_NAME) or env.get(SOCKET_IFNAME)):
        return Meeting(place, {}, warnings, [])
    from pytorch_launch.fabric import choose_fabric  # most launches do not need it

    place, interfaces, warnings_of_node = choose_fabric(env, world, node.root, place)
    return Meeting(place, interfaces, warnings, warnings_of_node)


def _choose_dumps(env, world, place, devices):
    if world.size > 1 and devices.vendor:  # NCCL and RCCL have the flight recorder
        return choose_dumps(env, file_name(world, place))
    return NO_DUMPS


def _reported(world, of_rank, of_node, of_launch):
    """The Problems that this rank reports: of several ranks that have the same, the first."""
    warnings = list(of_rank)
    if world.local_rank == 0:
        warnings += of_node
    if world.rank == 0:
        warnings += of_launch
    return warnings


def is_verbose(env):
    return env.get("PYTORCH_LAUNCH_VERBOSE", "0") not in ("", "0")


def _variables(env, world, place, devices, placement):
    """The variables of a rank: its world and place, and what follows from them; None for one to unset.

    Exported values in `env` take precedence.
    """
    decided = {**devices.changes, **conditional(env, world)}
    if not world.exported:
        decided.update(world.variables())
        decided.update(place.variables())
        if world.size > 1:
            decided[LAUNCH_ID] = place.launch
    if env.get(VIRTUAL):
        decided.update({"LOCAL_RANK": "0", VIRTUAL: "1"}, **devices.narrowed())
    if env.get(THREADS, "") in ("", env.get(f"{AGENT}THREADS")):
        decided[THREADS] = str(placement.threads)
    decided.update(_of_agent(env))
    return decided


def _of_agent(env):
    """The variables that torchrun's agent gave its workers under other names: they get the names that OpenMP reads."""
    decided = {}
    for name in env:
        if name.startswith(AGENT):
            decided[name] = None
            original = name[len(AGENT) :]
            if original.startswith(("OMP_", "GOMP_", "KMP_")):
                decided[original] = env.get(original) or env[name]
    return decided


def conditional(env, world):
    """The module's variables for worlds like this one, without those that the user has exported."""
    prefixes = []
    if world.spans_nodes:
        prefixes.append(MULTI_NODE)
    elif world.allocation.nodes == 1:
        # in an allocation of several nodes one process may launch ranks on all of them, which inherit its environment
        prefixes.append(ONE_NODE)
    if world.size > 1:
        prefixes.append(DISTRIBUTED)
    found = {}
    for prefix in prefixes:
        for name in env:
            own = name[len(prefix) :]
            if name.startswith(prefix) and own.isidentifier() and own not in env:
                found[own] = env[name]
    return found


def idle_allocation(world, starts_all_of_node):
    """A list of Problems: a process alone in its allocation."""
    tasks = world.allocation.tasks
    if starts_all_of_node:
        tasks = 1
    if tasks == 1 and world.allocation.nodes == 1:
        return []
    count = f"{world.allocation.nodes} nodes"
    if tasks > 1:
        count = f"{tasks} tasks"
    remedy = f"to use all of it, start it with {world.allocation.command}"
    return [Problem(f"only one process in an allocation of {count}", remedy)]
