# SPDX-License-Identifier: BSD-3-Clause
"""Chooses the address and port at which the ranks of a world meet, identically on every rank, without communication."""

from pytorch_launch import LaunchError, Problem, exists, is_number
from pytorch_launch.launchers import TO_ALL_RANKS, is_node_of_job, launcher_option
from pytorch_launch.nodelist import NAME_CHARACTERS

# Above the registered services, below the kernel's ephemeral range (32768-60999, ip(7),
# ip_local_port_range), whose ports any outgoing connection may have, and below torch's own
# defaults 29400 and 29500, of launchers that do not compute a port.
LOWEST_PORT = 10000
SPAN = 19391  # a prime, so that far-apart jobs use every port equally
STEPS = 61

THIS_HOST = "127.0.0.1"

# What names and addresses are made of, `%` before the interface of an address of IPv6.
ADDRESS_CHARACTERS = NAME_CHARACTERS + ":%"

# Names and addresses of a node for itself up to the first dot (hosts(5)), such as 127.0.0.1 and localhost.localdomain.
LOOPBACKS = (
    *("localhost", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback"),
    *("127", "0", "::1", "::", "::ffff:127"),
)


def choose_rendezvous(env, world, node):
    """`MASTER_ADDR` and `MASTER_PORT` of a world, the same on each of its ranks; the name of the launch; and Problems.

    Exported values take precedence, then a port that Slurm reserved for the step. Raises LaunchError.
    """
    launch, number = identify(world, node)
    port = env.get("MASTER_PORT") or str(world.reserved_port or _port(env, world, number))
    if not (is_number(port) and 1 <= int(port) <= 65535):
        raise LaunchError(f"MASTER_PORT={port} is not a port", "export a port from 1 to 65535", rank=world.rank)
    place = {"MASTER_ADDR": env.get("MASTER_ADDR") or _address(env, world), "MASTER_PORT": port}
    if place["MASTER_ADDR"] == "::1" and not env.get("GLOO_SOCKET_IFNAME"):
        place["GLOO_SOCKET_IFNAME"] = "lo"  # gloo would use the address of this host's name, which may be IPv4
    return place, launch, check_address(env, world, node.root)


def check_address(env, world, root):
    """A list of Problems: what is unlikely about exported addresses; names are compared as text, never looked up.

    Other names and addresses are taken, as sites have aliases. Raises LaunchError for what cannot work.
    """
    elsewhere, problems = "is on each node another host, and the ranks are on several nodes", []
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if world.spans_nodes and world.rank == 0 and env.get(name) in ("lo", "=lo"):
            problems.append(Problem(f"{name}={env[name]} {elsewhere}", f"unset {name}"))
    address = env.get("MASTER_ADDR")
    if not address:
        return problems
    exported, short = f"MASTER_ADDR={address}", address.partition(".")[0]
    is_here = short == world.node.partition(".")[0]
    if set(address) - set(ADDRESS_CHARACTERS) or address.count(":") == 1:
        fault, remedy = "is not one host's name or address", "export it without protocol, port, brackets and quotes"
        raise LaunchError(f"{exported} {fault}", remedy, rank=world.rank)
    if world.spans_nodes and short.lower() in LOOPBACKS:
        remedy = "unset MASTER_ADDR, or export what all nodes can reach"
        raise LaunchError(f"{exported} {elsewhere}", remedy, rank=world.rank)
    # `export MASTER_ADDR=$(hostname)` in each task. The first rank of a node is not on that of rank 0, which has this
    # name there, and reports nothing.
    if is_here and world.rank > world.local_rank == 0 and world.first_host not in (None, world.node):
        fault = f"{exported} is this node, but rank 0 runs on {world.first_host}"
        raise LaunchError(fault, "unset MASTER_ADDR, or export the same one for all ranks")
    if world.rank != 0:
        return []
    if exists(f"{root}/sys/class/net/{address}"):
        remedy = "export the node of rank 0; gloo takes GLOO_SOCKET_IFNAME"
        problems.append(Problem(f"{exported} is the name of a network interface", remedy))
    elif not is_here and is_node_of_job(env, address):
        fault = f"{exported} is another node of this job than {world.node}, where rank 0 runs"
        problems.append(Problem(fault, "unset MASTER_ADDR"))
    return problems


def identify(world, node):
    """A name for this launch and a number for its port, the same on each of its ranks, without communication.

    Both are None if the ranks share no number. Launches of one cluster's Slurm, of one MPI launcher, or on one node
    have different names. It is short, without spaces and slashes. An MPI launcher may pass the number of the job to its
    ranks on the first node only (daemons that ssh started), so the number is not part of its name.
    """
    if world.step is not None:
        return f"{world.job}.{world.step}", step_number(world.job, world.step)
    if world.launch is not None:
        return f"mpi{world.launch}", world.launch
    # the process that started the world on this node
    number = node.pid if world.size == 1 else None if world.spans_nodes else node.launcher
    return None if number is None else f"local.{number}", number


def step_number(job, step):
    """The number of step `step` of job `job`, whose remainder by SPAN is that of its port.

    Two steps less than STEPS apart, of two jobs at most 316 apart, never share a port: their sums
    differ, and by at most 316 * 61 + 60 = 19336 < SPAN, so the remainders differ too. Array tasks
    and the components of a heterogeneous job have job numbers of their own. Slurm's special steps
    (4294967290 and up) are numbers like the others.

    Steps further apart may share one: of 16 consecutive jobs on one node, each at a step below 200 drawn
    at random, two do in 8 % of draws. `claim` detects that on the node.
    """
    return job * STEPS + step


def free_port(start):
    """A port of the same range that is neither in use nor claimed on this node, the first from number `start` on.

    For a world of one process only: other ranks could not compute it.
    """
    from pytorch_launch.claim import is_claimed, is_free

    for offset in range(SPAN):
        port = LOWEST_PORT + (start + offset) % SPAN
        if is_free(port) and not is_claimed(port):
            return port
    raise LaunchError(f"no free port from {LOWEST_PORT} to {LOWEST_PORT + SPAN - 1}", "export MASTER_PORT", rank=0)


def _address(env, world):
    if world.first_host is None:
        fault = f"{world.source} does not report the node of rank 0"
        raise LaunchError(fault, _on_all_ranks(env, "MASTER_ADDR=<its host>"), rank=world.rank)
    # `srun --distribution=arbitrary` and host files put rank 0 on any node, while the node list stays sorted;
    # the other ranks would try to connect to the wrong host for half an hour.
    if world.rank == 0 and world.node_rank != 0:
        fault = f"rank 0 runs on {world.node}, but the first host of {world.source} is {world.first_host}"
        remedy = _on_all_ranks(env, f"MASTER_ADDR={world.node}") + ", or let rank 0 run on the first host"
        raise LaunchError(fault, remedy, rank=world.rank)
    if world.first_host != THIS_HOST:
        return world.first_host
    from pytorch_launch.claim import is_local  # imports _socket

    # the loopback interface may have no address of IPv4
    return next(filter(is_local, (THIS_HOST, "::1")), THIS_HOST)


def _port(env, world, number):
    if number is not None and world.size == 1 and world.step is None and world.launch is None:
        return free_port(number)
    if number is not None:
        return LOWEST_PORT + number % SPAN
    fault, remedy = f"{world.source} passes no number to its ranks for a port", _on_all_ranks(env, "a MASTER_PORT")
    if not world.spans_nodes:
        remedy = "export MASTER_PORT before the launch; in a container, omit --pid and --containall"
    raise LaunchError(fault, remedy, rank=world.rank)


def _on_all_ranks(env, variable):
    return f"export {variable} {launcher_option(env, TO_ALL_RANKS)}"
