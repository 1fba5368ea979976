# SPDX-License-Identifier: BSD-3-Clause
"""The ports and loopback addresses of this host, found by binding sockets that are closed again."""

import _socket  # in place of `socket`, see `pytorch_launch`

LOOPBACK = "127.0.0.1", "::1"


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
