"""Where the ranks of a world meet, found without a word between them; called by `environment` and `elastic`."""

from pytorch_launch import LaunchError, is_number
from pytorch_launch.claim import UNKNOWN, claim, is_claimed

# Above the registered services, below the kernel's ephemeral range (32768-60999, ip(7),
# ip_local_port_range), whose ports any outgoing connection may hold, and below torch's own
# defaults 29400 and 29500, where launchers that compute nothing meet.
LOWEST_PORT = 10000
SPAN = 19391  # a prime, so that far-apart jobs use every port equally
STEPS = 61

LOOPBACK = "127.0.0.1", "::1"

START_AGAIN = "start again, or export another MASTER_PORT for this launch"
NO_RANK = "use conda-python-simple for a program that is no rank, or export another MASTER_PORT"


class RendezvousError(LaunchError):
    """An address or port where the ranks cannot meet; the message names the variable."""


def rendezvous(env, world, origin):
    """`MASTER_ADDR` and `MASTER_PORT` of a world, the same on each of its ranks.

    What the user exported wins, then a port that Slurm reserved for the step. `origin` is a function
    without arguments that returns the number of the process that started this world on this node;
    it is asked only where the launcher gives no number. Raises RendezvousError.
    """
    place = {
        "MASTER_ADDR": env.get("MASTER_ADDR") or _address(world),
        "MASTER_PORT": _exported_port(env) if env.get("MASTER_PORT") else str(_port(world, origin)),
    }
    if place["MASTER_ADDR"] == LOOPBACK[1] and not env.get("GLOO_SOCKET_IFNAME"):
        place["GLOO_SOCKET_IFNAME"] = "lo"  # gloo would use the address of this host's name, which may be IPv4
    return place


def launch_id(world, origin):
    """A name for this launch, the same on each of its ranks, without communication; None if they share no number.

    Another launch has another one: of one cluster's Slurm, of one MPI launcher, or on one node. `origin` as in
    `rendezvous`. It is short, without spaces and slashes. An MPI launcher may give its ranks on the first node
    alone the number of the job (daemons that ssh has started), so the number is no part of its name.
    """
    if world.step is not None:
        return f"{world.job}.{world.step}"
    if world.launch is not None:
        return f"mpi{world.launch}"
    if world.local_size < world.size:
        return None
    try:
        return f"local.{origin()}"
    except RendezvousError:  # in a container that hides the launcher
        return None


def step_port(job, step):
    """The port of step `step` of job `job`: LOWEST_PORT + (job * STEPS + step) mod SPAN.

    Two steps less than STEPS apart, of two jobs at most 316 apart, never share a port: their sums
    differ, and by at most 316 * 61 + 60 = 19336 < SPAN, so the remainders differ too. Array tasks
    and the components of a heterogeneous job have job numbers of their own. Slurm's special steps
    (4294967290 and up) are numbers like the others.

    Steps further apart may share one: of 16 consecutive jobs on one node, each at a step below 200 drawn
    at random, two do in 8 % of draws. `claim` finds that out on the node.
    """
    return LOWEST_PORT + (job * STEPS + step) % SPAN


def free_port(start):
    """A port of the same range that is neither in use nor claimed on this node, the first from number `start` on.

    For a world of one process only: the others of a world could not know it.
    """
    for offset in range(SPAN):
        port = LOWEST_PORT + (start + offset) % SPAN
        if is_free(port) and not is_claimed(port):
            return port
    raise RendezvousError(f"no free port from {LOWEST_PORT} to {LOWEST_PORT + SPAN - 1}: export MASTER_PORT")


def check_claim(place, world, launch):
    """Claim the port of `place` for `launch` on rank 0's node; raise RendezvousError if another launch has.

    For every rank there, before it starts Python: of two launches with the same port, the ranks of one would
    join the other. `launch` is what `launch_id` returns.
    """
    holder = claim(int(place["MASTER_PORT"]), launch, is_rank_0=world.rank == 0)
    if holder is not None:
        name = {launch: "another rank 0 of this launch", UNKNOWN: "another launch"}.get(holder.launch, holder.launch)
        name += holder.pid and f" (process {holder.pid})"
        # the first: a second program that rank 0's task started, which starting again would refuse again
        remedy = NO_RANK if holder.launch == launch else START_AGAIN
        raise RendezvousError(_in_use(place, world.source, name, remedy))


def check_free(place, source):
    """Raise RendezvousError if another process listens on the port of `place` on this host.

    For rank 0, after `check_claim`: it would fail in Python as well, but the other ranks would join the other
    process and wait for it. `source` names the launch. A program that takes no claim can still bind the port
    between this and torch.
    """
    if not is_free(int(place["MASTER_PORT"])):
        raise RendezvousError(_in_use(place, source, "another program, or by one that started this", START_AGAIN))


def _in_use(place, source, holder, remedy):
    return (
        f"port {place['MASTER_PORT']} on {place['MASTER_ADDR']}, the meeting point of {source}, is in use by {holder}: "
        f"{remedy}"
    )


def is_free(port):
    """Whether a server could listen on `port` of this host, over IPv6 and IPv4."""
    import _socket  # the core of `socket`, at a twentieth of its import time

    for family in (_socket.AF_INET6, _socket.AF_INET):
        try:
            probe = _socket.socket(family, _socket.SOCK_STREAM)
        except OSError:  # a kernel without this family
            continue
        try:
            # as torch does: connections that have ended are no obstacle
            probe.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
            if family == _socket.AF_INET6:
                probe.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 1)
            probe.bind(("", port))
            # where both have SO_REUSEADDR, Linux refuses a second server only when it listens
            probe.listen(1)
        except OSError as error:
            if error.errno == 98:  # EADDRINUSE; `errno` would be one more module
                return False
        finally:
            probe.close()
    return True


def _address(world):
    if world.first_host is None:
        raise RendezvousError(
            f"{world.source} does not say where rank 0 is: pass MASTER_ADDR=<its host> on to all ranks "
            "(mpirun -x, mpiexec -genv or --env)"
        )
    # `srun --distribution=arbitrary` and host files put rank 0 where the user says, while the node
    # list stays sorted; the other ranks would knock at the wrong host for half an hour.
    if world.rank == 0 and world.node_rank != 0:
        raise RendezvousError(
            f"rank 0 runs on {world.node}, but the first host of {world.source} is "
            f"{world.first_host}: export MASTER_ADDR, or leave out --distribution=arbitrary or the host file"
        )
    return loopback() if world.first_host == LOOPBACK[0] else world.first_host


def loopback():
    """The address of this host's loopback interface, which may have none of IPv4."""
    import _socket  # the core of `socket`, at a twentieth of its import time

    for family, address in zip((_socket.AF_INET, _socket.AF_INET6), LOOPBACK):
        try:
            probe = _socket.socket(family, _socket.SOCK_DGRAM)
        except OSError:  # a kernel without this family
            continue
        try:
            probe.bind((address, 0))
        except OSError:
            continue
        finally:
            probe.close()
        return address
    return LOOPBACK[0]


def _port(world, origin):
    if world.reserved_port is not None:
        return world.reserved_port
    if world.step is not None:
        return step_port(world.job, world.step)
    if world.launch is not None:
        return LOWEST_PORT + world.launch % SPAN
    if world.size == 1:
        return free_port(origin())
    if world.local_size == world.size:
        return LOWEST_PORT + origin() % SPAN
    raise RendezvousError(
        f"{world.source} gives its ranks nothing to choose a port by: pass a MASTER_PORT on to all of them "
        "(mpirun -x, mpiexec -genv or --env)"
    )


def _exported_port(env):
    port = env["MASTER_PORT"]
    if not (is_number(port) and 1 <= int(port) <= 65535):
        raise RendezvousError(f"MASTER_PORT={port} is not a port: export one of 1 to 65535")
    return port
