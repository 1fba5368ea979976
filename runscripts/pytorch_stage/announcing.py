"""Announces the path of a copy to other processes of this user and node, at an abstract socket that ends with it."""

import os
import socket

from pytorch_packed import credentials


def is_announced(name):
    """Whether a process listens at this abstract name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        return end.connect_ex(name) == 0


def bind(name):
    """A socket with this abstract name, that does not listen yet; None if it is taken."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        end.bind(name)
    except OSError:
        end.close()
        return None
    return end


def answer(listener, path):
    """Send the path to the next process that asks, if it is of this user."""
    end, _ = listener.accept()
    with end:
        if credentials(end)[1] == os.getuid():
            try:
                end.sendall(path.encode() + b"\n")
            except OSError:
                return
