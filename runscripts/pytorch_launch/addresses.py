# SPDX-License-Identifier: BSD-3-Clause
"""Ports and addresses of this host, and addresses of names, as the operating system reports them."""

import _socket  # in place of `socket`, see `pytorch_launch`
import posix as os

from pytorch_launch import read

LOOPBACK = "127.0.0.1", "::1"
SIOCGIFADDR = 0x8915  # netdevice(7)
GLOBAL_SCOPE = "00"  # in /proc/net/if_inet6 (proc_net(5)); gloo cannot connect to an address of a link


def look_up(name, options=None):
    """The addresses of a host's name, none if it does not resolve; `options` as RES_OPTIONS has them."""
    if options:
        os.putenv("RES_OPTIONS", options)  # for this process: a server that does not answer delays it by 10 s
    try:
        # as bytes: for a text, Python imports the tables of international names
        found = _socket.getaddrinfo(name.encode(), None, 0, _socket.SOCK_STREAM)
    except (OSError, ValueError):
        return []
    return list(dict.fromkeys(address[4][0] for address in found))


def is_local(address):
    """Whether an address is one of this host, so that a server here could listen on it."""
    family = _socket.AF_INET6 if ":" in address else _socket.AF_INET
    try:
        probe = _socket.socket(family, _socket.SOCK_DGRAM)
    except OSError:  # a kernel without this family
        return False
    try:
        probe.bind((address, 0))
    except OSError:
        return False
    finally:
        probe.close()
    return True


def has_address(interface):
    """Whether an interface of this host has an address of IPv4, or one of IPv6 that other nodes can reach."""
    from fcntl import ioctl

    try:
        probe = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
        try:
            ioctl(probe.fileno(), SIOCGIFADDR, interface.encode()[:15].ljust(40, b"\0"))
        finally:
            probe.close()
    except OSError:
        # address, index, length of the prefix, scope, flags, interface
        lines = [line.split() for line in (read("/proc/net/if_inet6") or "").splitlines()]
        return any(line[3:4] == [GLOBAL_SCOPE] and line[5:] == [interface] for line in lines)
    return True


def is_free(port):
    """Whether a server could listen on `port` of this host, over IPv6 and IPv4."""
    for family in (_socket.AF_INET6, _socket.AF_INET):
        try:
            probe = _socket.socket(family, _socket.SOCK_STREAM)
        except OSError:  # a kernel without this family
            continue
        try:
            # as torch does, so that a port in TIME_WAIT counts as free
            probe.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
            if family == _socket.AF_INET6:
                probe.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 1)
            probe.bind(("", port))
            # if both servers set SO_REUSEADDR, Linux fails only the second listen(2)
            probe.listen(1)
        except OSError as error:
            if error.errno == 98:  # EADDRINUSE; `errno` would be one more module
                return False
        finally:
            probe.close()
    return True


def loopback():
    """The address of this host's loopback interface, which may not have one of IPv4."""
    return next(filter(is_local, LOOPBACK), LOOPBACK[0])
