"""Ports for the ranks of a test, which no other process receives before the ranks use them."""

import socket


def reserve_port():
    """Return a socket with a port of loopback; until it is closed, only a process that names the port can bind to it.

    A server can listen on the port meanwhile if it sets SO_REUSEADDR, as torch's store does: this socket does not
    listen, see socket(7).
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


def port_of(reserved):
    return reserved.getsockname()[1]
