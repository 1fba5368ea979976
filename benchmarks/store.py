"""What rank 0 serves for the ranks of a large world: connections, bytes and memory of its store, and what to set.

Measured with real stores of up to 512 clients on this machine; larger worlds are computed from the largest ones.
"""

import json
from pathlib import Path
from typing import NamedTuple

from testbed.layout import TestbedError

PROGRAM = Path(__file__).with_name("programs") / "store_clients.py"
#: Clients of NCCL's start, which needs no more of the store than this; and of gloo's, with a connection per pair.
CLIENTS = (8, 64, 128, 256, 512)
GLOO_CLIENTS = (4, 8, 16, 32)

#: Open files of a process by default (systemd.exec(5), LimitNOFILE: 1024 and, at most, 524,288), and those that rank 0
#: has without any client, with the image and the data set.
FILES, FILES_OF_RANK_0 = 1024, 256
#: net.core.somaxconn since Linux 5.4 (ip-sysctl); torch listens with the largest backlog that it allows, which should
#: be the size of the world (torch/csrc/distributed/c10d/TCPStoreLibUvBackend.cpp).
BACKLOG = 4096


class Served(NamedTuple):
    """What the store of rank 0 serves until a process group is there.

    `connections`, `files`  one for each rank
    `bytes`, `gloo_bytes`   with NCCL, and with gloo, in both directions
    `memory`                bytes that it takes
    `is_computed`           whether the world is larger than those measured
    """

    connections: int
    files: int
    bytes: int
    gloo_bytes: int
    memory: int
    is_computed: bool


class Measured(NamedTuple):
    """The rows of `store_clients.py` for NCCL and for gloo, in ascending order of clients."""

    nccl: list
    gloo: list

    def served(self, ranks):
        """What the store of a world of `ranks` serves."""
        row = next((row for row in self.nccl if row["clients"] == ranks), None)
        is_computed = row is None
        row = row or extrapolate(self.nccl[-2], self.nccl[-1], ranks)
        return Served(
            connections=row["connections"],
            files=row["files"],
            bytes=row["bytes"],
            gloo_bytes=pairs_bytes(self.gloo, ranks),
            memory=row["memory"],
            is_computed=is_computed,
        )


def measure(session, env):
    """Measure real stores with the Python of the module that `env` has loaded. Raises TestbedError."""
    rows = {}
    for backend, counts in (("nccl", CLIENTS), ("gloo", GLOO_CLIENTS)):
        output = session.run(["python", PROGRAM, backend, *counts], env)
        rows[backend] = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        if [row["clients"] for row in rows[backend]] != list(counts):
            raise TestbedError(f"{PROGRAM.name} {backend} printed {len(rows[backend])} rows, not {len(counts)}.")
    return Measured(**rows)


def extrapolate(smaller, larger, ranks):
    """A row for `ranks`, on the line through two rows."""
    distance = (ranks - larger["clients"]) / (larger["clients"] - smaller["clients"])
    return {name: round(larger[name] + distance * (larger[name] - smaller[name])) for name in larger}


def pairs_bytes(rows, ranks):
    """The bytes for `ranks` with gloo: each rank reads the addresses of all others, so they grow with the square."""
    found = next((row for row in rows if row["clients"] == ranks), None)
    return found["bytes"] if found else round(rows[-1]["bytes"] * (ranks / rows[-1]["clients"]) ** 2)


def settings(ranks):
    """What to set on the node of rank 0 for a world of `ranks`, in Markdown; "–" if the defaults are enough."""
    needed = []
    if ranks + FILES_OF_RANK_0 > FILES:
        needed.append(f"`ulimit -n {2 * ranks}`")
    if ranks > BACKLOG:
        needed.append(f"`net.core.somaxconn={ranks}`")
    return ", ".join(needed) or "–"
