# SPDX-License-Identifier: BSD-3-Clause
"""Decides everything for one rank, once and without side effects."""

from pytorch_launch import Problem, Value
from pytorch_launch.active import choose_python, isolate, shadowing
from pytorch_launch.caches import choose_caches
from pytorch_launch.cores import choose_cores
from pytorch_launch.devices import choose_devices
from pytorch_launch.launchers import MORE_CORES, discover, launcher_option
from pytorch_launch.rendezvous import choose_rendezvous
from pytorch_launch.topology import Node
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

# Variables by which OpenMP binds threads to cores. libgomp does so as soon as torch is imported: the main thread, and
# all processes that it starts, get one core (pytorch/pytorch#91989, #99625).
OPENMP_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")

# Variables of earlier releases, each with the page that has its replacement.
REMOVED = {"PYTORCH_LAUNCH_LOG_DIR": "docs/logs.md", "PYTORCH_LAUNCH_STAGE": "docs/staging.md"}


class Plan(Value):
    """The decisions for one rank.

    `env`        the environment that they were made from
    `world`      the World
    `python`     the active environment whose Python runs, None for the module's
    `place`      where the ranks meet, as `choose_rendezvous` has it, None if the launcher has exported it
    `launch`     the name of the launch, None if its ranks share none, or the launcher has exported the world
    `devices`    the Devices
    `placement`  the Placement on CPUs
    `changes`    variables to set before Python starts, None for one to unset
    `warnings`   Problems, without those that another rank reports
    and what to do first:
    `caches`     the directory to make for caches, None if there is none
    `bind`       the CPUs to bind this process to, None to keep its mask
    `dumps`      the directory to make for dumps of PyTorch's flight recorder, None if there is none
    """

    DEFAULTS = {"dumps": None}


def make_plan(env, node=None, *, virtual=False, known=()):
    """The Plan of the process with environment `env` on this node, or on another Node.

    `virtual` gives it LOCAL_RANK=0 and only its own GPU; `known` is that of `discover`. Raises LaunchError.
    """
    node = node or Node()
    virtual = virtual or bool(env.get(VIRTUAL))
    world = discover(env, node.host, known)
    started_with, env = env, {name: value for name, value in env.items() if name not in world.strays}
    devices = choose_devices(env, node, world.local_rank, world.local_size)
    placement = choose_cores(node, world, devices, launcher_option(env, MORE_CORES))
    place, launch, address_warnings = (None, None, []) if world.exported else choose_rendezvous(env, world, node)
    interfaces, fabric_warnings = {}, []
    if world.spans_nodes and (env.get(FABRIC_NAME) or env.get(SOCKET_IFNAME)):
        from pytorch_launch.fabric import choose_fabric  # most launches do not need it

        place, interfaces, fabric_warnings = choose_fabric(env, world, node.root, place)
    key = f"{'local' if world.job is None else world.job}-{world.node}"
    caches, cache_variables, cache_warnings = choose_caches(env, node.uid, key)
    isolated, isolation_warnings = isolate(env)
    python = choose_python(env)

    decided = compute_variables(env, world, threads=placement.threads, devices=devices, place=place, launch=launch)
    if virtual:
        decided.update({"LOCAL_RANK": "0", VIRTUAL: "1"}, **devices.narrowed())
    decided = {**dict.fromkeys(world.strays), **decided, **interfaces}
    decided = {**decided, **cache_variables, **isolated, **python.changes}

    warnings = [*([world.problem] if world.problem else []), *address_warnings]
    if world.local_rank == 0:  # it reports what all ranks of its node would report
        warnings += [*cache_warnings, *placement.warnings, *devices.warnings, *fabric_warnings]
    if world.rank == 0:
        warnings += [*isolation_warnings, *([] if python.prefix else shadowing(env))]
        if not world.exported:  # torchrun-distributed has reported these
            removed = [name for name in REMOVED if env.get(name, "0") not in ("", "0")]
            warnings += [Problem(f"{name} has no effect any longer", f"see {REMOVED[name]}") for name in removed]
            warnings += [*python.warnings, *openmp_warnings(env, placement.cpus)]
    return Plan(
        env=env,
        world=world,
        python=python.prefix,
        place=place,
        launch=launch,
        devices=devices,
        placement=placement,
        changes={name: value for name, value in decided.items() if started_with.get(name) != value},
        warnings=warnings,
        caches=caches,
        bind=placement.bind,
    )


def idle_allocation(world, starts_all_of_node):
    """A list of Problems: a process alone in its allocation."""
    tasks, nodes, launcher = world.allocation
    if nodes == 1 and (tasks == 1 or starts_all_of_node):
        return []
    count = f"{tasks} tasks" if tasks > 1 and not starts_all_of_node else f"{nodes} nodes"
    return [Problem(f"only one process in an allocation of {count}", f"to use all of it, start it with {launcher}")]


def compute_variables(env, world, *, threads, devices, place, launch):
    """The variables of a rank of `world`, name to value; None for one to unset.

    Exported values in `env` take precedence. `threads` is the number of physical cores that the rank has, `devices`
    its Devices, `place` and `launch` what `choose_rendezvous` returned.
    """
    decided = {**devices.changes, **conditional(env, world)}
    if not world.exported:
        decided.update(world.variables())
        decided.update(place)
        if world.size > 1:
            decided[LAUNCH_ID] = launch
    if env.get("OMP_NUM_THREADS", "") in ("", env.get(f"{AGENT}THREADS")):
        decided["OMP_NUM_THREADS"] = str(threads)
    of_agent = [name for name in env if name.startswith(AGENT)]
    binding = {name: env.get(name) or env[AGENT + name] for name in OPENMP_BINDING if AGENT + name in of_agent}
    return {**decided, **dict.fromkeys(of_agent), **binding}


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


def conditional(env, world):
    """The module's variables for worlds like this one, without those that the user has exported."""
    # in an allocation of several nodes one process may launch ranks on all of them, which inherit its environment
    prefixes = [MULTI_NODE] if world.spans_nodes else [ONE_NODE] if world.allocation[1] == 1 else []
    prefixes += [DISTRIBUTED] if world.size > 1 else []
    found = {name[len(each) :]: env[name] for each in prefixes for name in env if name.startswith(each)}
    # a shell can have no variable of another name, which env(1) can; str.isascii came with Python 3.7
    names = {name for name in found if name.isidentifier() and len(name.encode()) == len(name)}
    return {name: found[name] for name in found if name in names.difference(env)}
