# SPDX-License-Identifier: BSD-3-Clause
"""Decides everything for one rank, once and without side effects."""

from pytorch_launch import Problem, Value
from pytorch_launch.active import choose_python, isolate, shadowing
from pytorch_launch.caches import choose_caches
from pytorch_launch.cores import choose_cores
from pytorch_launch.devices import choose_devices
from pytorch_launch.environment import FABRIC_NAME, SOCKET_IFNAME, compute_variables, openmp_warnings, removed
from pytorch_launch.facts import launcher_cpus, read_facts
from pytorch_launch.launchers import discover, more_cores
from pytorch_launch.rendezvous import check_address, choose_rendezvous, claims_port, launch_id
from pytorch_launch.topology import Node
from pytorch_launch.world import VIRTUAL

LOCAL_RANK_HINT = (
    "each rank sees only its own GPU, so its device is {0}:0 and not {0}:LOCAL_RANK",
    "use LOCAL_RANK % torch.{0}.device_count(), or conda-python-distributed --virtual-local-rank",
)


class Plan(Value):
    """The decisions for one rank.

    `env`        the environment that they were made from
    `root`       as in `facts.Facts`
    `world`      the World
    `python`     the active environment whose Python runs, None for the module's
    `place`      what `choose_rendezvous` returned, None if the launcher has exported it
    `launch`     what `launch_id` returned, None if the launcher has exported the world
    `devices`    the Devices
    `placement`  the Placement on CPUs
    `changes`    variables to set before Python starts, None for one to unset
    `warnings`   Problems, without those that another rank reports
    and what to do first:
    `claim`      whether to claim the port where the ranks meet
    `caches`     the directory to make for caches, None if there is none
    `bind`       the CPUs to bind this process to, None to keep its mask
    `dumps`      the directory to make for dumps of PyTorch's flight recorder, None if there is none
    """

    __slots__ = (
        *("bind", "caches", "changes", "claim", "devices", "dumps", "env", "launch", "place", "placement"),
        *("python", "root", "warnings", "world"),
    )
    DEFAULTS = {"dumps": None}


def make_plan(env, facts=None, *, virtual=False):
    """The Plan of the process with environment `env` on this node, or with other Facts.

    `virtual` gives it LOCAL_RANK=0 and only its own GPU. Raises WorldError, RendezvousError.
    """
    facts = facts or read_facts()
    virtual = virtual or bool(env.get(VIRTUAL))
    world = discover(env, facts.host)
    started_with, env = env, {name: value for name, value in env.items() if name not in world.strays}
    node = Node(facts.root, facts.cpus, **({} if facts.root else {"launcher_cpus": launcher_cpus}))
    devices = choose_devices(env, node, world.local_rank, world.local_size)
    placement = choose_cores(node, world, devices, more_cores(env))
    place = None if world.exported else choose_rendezvous(env, world, facts)
    address_warnings = check_address(env, world, facts.root)
    interfaces, fabric_warnings = {}, []
    if world.spans_nodes and (env.get(FABRIC_NAME) or env.get(SOCKET_IFNAME)):
        from pytorch_launch.fabric import choose_fabric  # most launches do not need it

        place, interfaces, fabric_warnings = choose_fabric(env, world, facts.root, place)
    launch = None if world.exported else launch_id(world, facts)
    key = f"{'local' if world.job is None else world.job}-{world.node}"
    caches, cache_variables, cache_warnings = choose_caches(env, facts.uid, key)
    isolated, isolation_warnings = isolate(env)
    python = choose_python(env)

    decided = compute_variables(env, world, threads=placement.threads, devices=devices, place=place, launch=launch)
    if virtual:
        decided.update({"LOCAL_RANK": "0", VIRTUAL: "1"}, **devices.narrowed())
    decided = {**dict.fromkeys(world.strays), **decided, **interfaces}
    decided = {**decided, **cache_variables, **isolated, **python.changes}

    warnings = [*([world.problem] if world.problem else []), *address_warnings]
    if world.reports_for_node:
        warnings += [*cache_warnings, *placement.warnings, *devices.warnings, *fabric_warnings]
    if world.rank == 0:
        # torchrun-distributed has reported the others
        once = [] if world.exported else [*python.warnings, *removed(env), *openmp_warnings(env, placement.cpus)]
        warnings += [*isolation_warnings, *([] if python.prefix else shadowing(env)), *once]
    if world.rank == 1 and 0 < devices.count <= world.local_rank and not virtual:
        kind = "xpu" if devices.vendor == "intel" else "cuda"
        warnings.append(Problem(*(text.format(kind) for text in LOCAL_RANK_HINT)))
    return Plan(
        env=env,
        root=facts.root,
        world=world,
        python=python.prefix,
        place=place,
        launch=launch,
        devices=devices,
        placement=placement,
        changes={name: value for name, value in decided.items() if started_with.get(name) != value},
        warnings=warnings,
        claim=claims_port(place, world),
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
