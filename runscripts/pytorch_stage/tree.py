"""Copies a file along a tree of nodes: each keeper reads from its parent and sends to its children as data arrives."""

import hmac
import os
import socket
import threading

from pytorch_stage import StageError
from pytorch_stage.channel import listen

BLOCK = 1 << 20
FANOUT = 2
CONNECT_SECONDS = 10
STALL_SECONDS = 120


def parent_of(number):
    """The number of the parent in the tree; None for the first, which reads the shared file."""
    return (number - 1) // FANOUT if number else None


class Server:
    """Sends a growing file to each client that knows the token."""

    def __init__(self, token):
        self.token = token.encode()
        self.file, self.available, self.has_ended = None, 0, False
        self.grown = threading.Condition()
        self.listener = listen(64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                end, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._send, args=(end,), daemon=True).start()

    def _send(self, end):
        with end:
            end.settimeout(STALL_SECONDS)
            try:
                if not hmac.compare_digest(end.recv(len(self.token), socket.MSG_WAITALL), self.token):
                    return
                end.settimeout(None)  # sendfile(2) waits
                self._send_file(end)
            except OSError:
                return

    def _send_file(self, end):
        sent = 0
        while self.await_more(sent) > sent:
            sent += os.sendfile(end.fileno(), self.file, sent, min(self.available - sent, BLOCK))

    def await_more(self, place):
        """Wait until more than `place` bytes are written, or the file has ended; return how many are."""
        with self.grown:
            self.grown.wait_for(lambda: self.available > place or self.has_ended)
            return self.available

    def announce(self, file, size, available):
        """`available` of the `size` bytes of `file`, a descriptor, are written."""
        with self.grown:
            self.file, self.available, self.has_ended = file, available, available == size
            self.grown.notify_all()

    def end(self):
        """Close the connections of those who wait for bytes that will not come."""
        with self.grown:
            self.has_ended = True
            self.grown.notify_all()


def fetch(source, target, size, server, *, token):
    """Copy `size` bytes to the descriptor `target`, from a path or an address [host, port]; tell `server` the progress.

    Raises StageError.
    """
    done = 0
    try:
        with _open(source, token) as stream:
            server.announce(target, size, 0)
            while done < size:
                block = stream(min(BLOCK, size - done))
                if not block:
                    raise StageError(f"only {done} of {size} bytes arrived from {_name(source)}")
                while block:
                    written = os.write(target, block)
                    done += written
                    block = block[written:]
                server.announce(target, size, done)
    except OSError as error:
        raise StageError(f"copying from {_name(source)} failed: {error.strerror or error}") from error


class _open:  # noqa: N801  (used like a function)
    """A function that reads at most a number of bytes from a source, for `with`."""

    def __init__(self, source, token):
        if isinstance(source, str):
            self.stream = open(source, "rb", buffering=0)  # noqa: SIM115  (closed by __exit__)
            self.read = self.stream.read
        else:
            self.stream = socket.create_connection(tuple(source), timeout=CONNECT_SECONDS)
            self.stream.settimeout(STALL_SECONDS)
            self.stream.sendall(token.encode())
            self.read = self.stream.recv

    def __enter__(self):
        return self.read

    def __exit__(self, *_):
        self.stream.close()


def _name(source):
    return source if isinstance(source, str) else source[0]
