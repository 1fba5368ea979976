"""Where the ranks of a world meet, found without a word between them; called by `environment`."""

from pytorch_launch import LaunchError

# Above the registered services, below the kernel's ephemeral range (32768-60999, ip(7),
# ip_local_port_range), whose ports any outgoing connection may hold, and below torch's own
# defaults 29400 and 29500, where launchers that compute nothing meet.
LOWEST_PORT = 10000
SPAN = 19391  # a prime, so that far-apart jobs use every port equally
STEPS = 61


class RendezvousError(LaunchError):
    """An address or port where the ranks cannot meet; the message names the variable."""


def rendezvous(env, world, pid):
    """`MASTER_ADDR` and `MASTER_PORT` of a world, the same on each of its ranks.

    What the user exported wins, then a port that Slurm reserved for the step. `pid` is this
    process's number, from which a single process starts to look for a free port.
    Raises RendezvousError.
    """
    return {
        "MASTER_ADDR": env.get("MASTER_ADDR") or _address(world),
        "MASTER_PORT": _exported_port(env) if env.get("MASTER_PORT") else str(_port(world, pid)),
    }


def step_port(job, step):
    """The port of step `step` of job `job`: LOWEST_PORT + (job * STEPS + step) mod SPAN.

    Two steps less than STEPS apart, of two jobs at most 316 apart, never share a port: their sums
    differ, and by at most 316 * 61 + 60 = 19336 < SPAN, so the remainders differ too. Array tasks
    and the components of a heterogeneous job have job numbers of their own. Slurm's special steps
    (4294967290 and up) are numbers like the others.
    """
    return LOWEST_PORT + (job * STEPS + step) % SPAN


def free_port(start):
    """A port of the same range that nobody listens on now, the first from number `start` on.

    For a world of one process only: the others of a world could not know it.
    """
    for offset in range(SPAN):
        port = LOWEST_PORT + (start + offset) % SPAN
        if _is_free(port):
            return port
    raise RendezvousError(f"no free port from {LOWEST_PORT} to {LOWEST_PORT + SPAN - 1}: export MASTER_PORT")


def _address(world):
    # `srun --distribution=arbitrary` puts rank 0 where the user's host file says, while the node
    # list stays sorted; the other ranks would knock at the wrong host for half an hour.
    if world.rank == 0 and world.node_rank != 0:
        raise RendezvousError(
            f"rank 0 runs on {world.node}, but the first host of {world.source} is "
            f"{world.first_host}: export MASTER_ADDR, or leave out --distribution=arbitrary"
        )
    return world.first_host


def _port(world, pid):
    if world.reserved_port is not None:
        return world.reserved_port
    if world.step is not None:
        return step_port(world.job, world.step)
    return free_port(pid)


def _exported_port(env):
    port = env["MASTER_PORT"]
    if not (port.isdecimal() and 1 <= int(port) <= 65535):
        raise RendezvousError(f"MASTER_PORT={port} is not a port: export one of 1 to 65535")
    return port


def _is_free(port):
    import _socket  # the core of `socket`, at a twentieth of its import time

    probe = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    try:
        probe.bind(("", port))
    except OSError:
        return False
    finally:
        probe.close()
    return True
