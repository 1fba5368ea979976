# SPDX-License-Identifier: BSD-3-Clause
"""Chooses names and interfaces of the fast network between nodes, as the cluster profile describes them.

A rank imports this module only if its world spans nodes and FABRIC_NAME or SOCKET_IFNAME is set.
"""

import os

from pytorch_launch import LaunchError, Problem, is_number, read
from pytorch_launch.ports import is_local
from pytorch_launch.world import DISTRIBUTED, FABRIC_NAME, SOCKET_IFNAME

SIOCGIFADDR = 0x8915  # netdevice(7)
GLOBAL_SCOPE = "00"  # in /proc/net/if_inet6 (proc_net(5)); gloo cannot connect to an address of a link

#: What takes an interface, and the prefix by which it takes the name as exact: gloo fails for one that is absent
#: (torch.distributed, "Choosing the network interface to use"), NCCL takes every interface that begins with the name.
TAKERS = {"GLOO_SOCKET_IFNAME": "", "NCCL_SOCKET_IFNAME": "="}

USE_PLAIN = f"correct {FABRIC_NAME}, or export it empty to use the plain names"


def choose_fabric(env, world, root, place):
    """`place`, a Place, with the node's name on the fast network; the variables that name an interface; and Problems.

    Raises LaunchError.
    """
    variables, problems = choose_interface(env, world.node, root)
    if env.get(FABRIC_NAME) and not env.get("MASTER_ADDR") and not world.exported:
        address, problem = choose_address(env, place.address, world.node, is_here=world.rank == 0)
        place = place._replace(address=address)
        if problem:
            problems.append(problem)
    return place, variables, problems


def choose_address(env, host, node, *, is_here):
    """The name of the node `host` on the fast network, or `host` and a Problem; `node` is this one.

    Each rank decides by what it can look up, without communication. If the name resolves on the node of one of two
    ranks only, they still meet, as rank 0 listens on all addresses of its node, which both names have. A name of
    another node's address would send all ranks there: raises LaunchError if `is_here` and it is not this node's.
    """
    name = fabric_name(env[FABRIC_NAME], host)
    if name == host:
        return host, None
    found = look_up(env, name)
    named = f"{name}, the name of {host} by {FABRIC_NAME}={env[FABRIC_NAME]}"
    if not found:
        return host, Problem(f"{named}, does not resolve on {node}: using {host}", USE_PLAIN)
    if is_here and not any(map(is_local, found)):
        fault = f"{named}, is {', '.join(found)}, which is not an address of that node"
        raise LaunchError(fault, USE_PLAIN, rank=0)
    return name, None


def fabric_name(pattern, host):
    """The name of `host` on the fast network, `jwb0001i` of `jwb0001.juwels` by `*i`; an address has no other name."""
    short = host.partition(".")[0]
    return host if is_number(short) or ":" in host else pattern.replace("*", short)


def look_up(env, name):
    """The addresses of `name`, none if it does not resolve; the resolver has the options of the ranks."""
    import _socket  # `socket` costs as much as all of this package

    if not env.get("RES_OPTIONS") and env.get(DISTRIBUTED + "RES_OPTIONS"):
        os.putenv("RES_OPTIONS", env[DISTRIBUTED + "RES_OPTIONS"])  # a server that does not answer delays it by 10 s
    try:
        # as bytes: for a text, Python imports the tables of international names
        found = _socket.getaddrinfo(name.encode(), None, 0, _socket.SOCK_STREAM)
    except (OSError, ValueError):
        return []
    return list(dict.fromkeys(address[4][0] for address in found))


def choose_interface(env, node, root):
    """The variables that name the first interface of the profile's list that is usable on this node, and Problems."""
    takers = [name for name in TAKERS if name not in env]
    faults = []
    for name in env.get(SOCKET_IFNAME, "").split():
        fault = _fault_of_interface(name, root)
        if fault is None:
            return {taker: TAKERS[taker] + name for taker in takers}, []
        faults.append(f"{name} {fault}")
    if not faults or not takers:
        return {}, []
    fault = f"no interface of {SOCKET_IFNAME} is usable on {node} ({', '.join(faults)}): {' and '.join(takers)} not set"
    return {}, [Problem(fault, f"correct {SOCKET_IFNAME}, or exclude the node if others have the interface")]


def _fault_of_interface(name, root):
    """Why gloo and NCCL cannot use an interface, None if they can."""
    state = read(f"{root}/sys/class/net/{name}/operstate")
    if state is None:
        return "is absent"
    # drivers without a notion of a link report `unknown` (Linux, Documentation/networking/operstates.rst); what is
    # off is `down` with all of them (net/core/net-sysfs.c)
    if state not in ("up", "unknown"):
        return "is down"
    if not has_address(name):
        return "has no address"
    return None


def has_address(interface):
    """Whether an interface of this host has an address of IPv4, or one of IPv6 that other nodes can reach."""
    import _socket
    from fcntl import ioctl

    try:
        probe = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
        try:
            ioctl(probe.fileno(), SIOCGIFADDR, interface.encode()[:15].ljust(40, b"\0"))
            return True
        finally:
            probe.close()
    except OSError:
        # address, index, length of the prefix, scope, flags, interface
        lines = [line.split() for line in (read("/proc/net/if_inet6") or "").splitlines()]
        return any(line[3:4] == [GLOBAL_SCOPE] and line[5:] == [interface] for line in lines)
