"""The connection between the front and a keeper: one JSON object per line, over TCP."""

import json
import select
import socket
import time

from pytorch_stage import StageError

LONGEST_LINE = 1 << 20


class ClosedError(StageError):
    """The other side has ended."""


class Channel:
    """A connected socket and the bytes that were read ahead."""

    def __init__(self, end):
        self.end = end
        self.buffer = b""

    def fileno(self):
        """For select(2)."""
        return self.end.fileno()

    def send(self, **values):
        """Send an object. Raises ClosedError."""
        try:
            self.end.settimeout(60)
            self.end.sendall(json.dumps(values).encode() + b"\n")
        except OSError as error:
            raise ClosedError(f"a connection has ended: {error}") from error

    def receive(self, seconds=None):
        """The next object, None if there is none after `seconds`. Raises ClosedError."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while b"\n" not in self.buffer:
            left = None if deadline is None else max(0, deadline - time.monotonic())
            if not ready([self.end], left):
                return None
            try:
                data = self.end.recv(65536)
            except OSError as error:
                raise ClosedError(f"a connection has ended: {error}") from error
            if not data or len(self.buffer) > LONGEST_LINE:
                raise ClosedError("a process was killed")
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        try:
            return json.loads(line)
        except ValueError as error:
            raise ClosedError("a connection has other data") from error

    def close(self):
        """Close the connection."""
        self.end.close()


def listen(backlog):
    """A socket that listens at a free port of all addresses (socket.create_server came with Python 3.8)."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("", 0))
    listener.listen(backlog)
    return listener


def ready(ends, seconds):
    """Those of `ends`, sockets or channels, with data or a connection; select(2) takes no descriptor above 1023."""
    poll = select.poll()
    for end in ends:
        poll.register(end, select.POLLIN)
    found = {number for number, _ in poll.poll(None if seconds is None else seconds * 1000)}
    return [end for end in ends if end.fileno() in found]


def own_addresses(peers):
    """Names and addresses of this host for processes on `peers` (host names), the best ones first."""
    found = []
    for peer in peers:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((socket.gethostbyname(peer), 9))  # sends nothing
                found.append(probe.getsockname()[0])
        except OSError:
            continue
    found += [socket.gethostname()]
    return list(dict.fromkeys(found))


def connect(addresses):
    """A Channel to the first of `addresses` (`host:port`) that accepts. Raises StageError."""
    reasons = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            return Channel(socket.create_connection((host, int(port)), timeout=10))
        except (OSError, ValueError) as error:
            reasons.append(f"{address}: {error}")
    raise StageError(f"no connection to the node that stages ({', '.join(reasons)})")
