# SPDX-License-Identifier: BSD-3-Clause
"""The ports of launches, and whether one is free on this node."""

from errno import EADDRINUSE

from pytorch_launch import LaunchError

# Above the registered services, below the kernel's ephemeral range (32768-60999, ip(7),
# ip_local_port_range), whose ports any outgoing connection may have, and below torch's own
# defaults 29400 and 29500, of launchers that do not compute a port.
LOWEST_PORT = 10000
SPAN = 19391  # a prime, so that far-apart jobs use every port equally


def free_port(start):
    """A port that is free on this node, the first from number `start` of the range on. Raises LaunchError.

    For a world of one process only: other ranks could not compute it.
    """
    for offset in range(SPAN):
        port = LOWEST_PORT + (start + offset) % SPAN
        if is_free(port):
            return port
    raise LaunchError(f"no free port from {LOWEST_PORT} to {LOWEST_PORT + SPAN - 1}", "export MASTER_PORT")


def is_free(port):
    """Whether a server could listen on `port` of this host, over IPv6 and IPv4."""
    return EADDRINUSE not in (_listen("::", port), _listen("", port))


def is_local(address):
    """Whether an address is one of this host, so that a server here could listen on it."""
    return _listen(address, 0) is None


def _listen(address, port):
    """The number of the error of a server that would listen there, None without one.

    The second attempt is torch's. It listens only if the port has connections, or had some lately: otherwise a rank
    could connect to it meanwhile.
    """
    if _try(address, port, is_reused=False) is None:
        return None
    return _try(address, port, is_reused=True)


def _try(address, port, *, is_reused):
    import _socket  # `socket` costs as much as all of this package

    family = _socket.AF_INET
    if ":" in address:
        family = _socket.AF_INET6
    try:
        probe = _socket.socket(family, _socket.SOCK_STREAM)
    except OSError as error:  # a kernel without this family
        return error.errno
    try:
        probe.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, int(is_reused))
        probe.bind((address, port))
        if is_reused:  # if both servers set SO_REUSEADDR, Linux fails only this
            probe.listen(1)
    except OSError as error:
        return error.errno
    finally:
        probe.close()
    return None
