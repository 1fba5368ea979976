"""Replays what one rank asked of a shared file system as a world of ranks: a simulation of the queues.

A rank computes, makes the next call of its record, waits for the answer, and computes again. Metadata calls wait in
one queue, reads in another, as in testbed/cluster/slow_fs.c. The ranks of a node share what its kernel remembers. Each
rank has a core of its own, or all share a number of cores.
"""

import heapq
import math
from typing import NamedTuple

#: A larger world is simulated by this many nodes and a server that is slower by as much: all nodes do the same.
SIMULATED_NODES = 16


class Call(NamedTuple):
    """What a rank asks of the file system after computing for some seconds.

    `computing`  seconds before the call
    `kind`       L look up a name, A read attributes, K read a link, O open, D read a directory, R read a file
    `name`       the file or directory
    `offset`     where a read starts
    `bytes`      length of a read
    """

    computing: float
    kind: str
    name: str
    offset: int = 0
    bytes: int = 0


class Server(NamedTuple):
    """Seconds for which the server is busy with a metadata call, and with a byte."""

    seconds_per_call: float
    seconds_per_byte: float


class Record(NamedTuple):
    """The calls of one rank, and the seconds for which it computes after the last one."""

    calls: list
    computing: float


def read_record(text, start, end):
    """The Record in the `text` that slow_fs.c wrote, of a lone rank between two times in seconds."""
    calls, before = [], start
    for line in text.splitlines():
        arrival, done, kind, offset, size, name = line.split("\t")
        if int(done) / 1e9 > end:
            break
        calls.append(Call(max(0.0, int(arrival) / 1e9 - before), kind, name, int(offset), int(size)))
        before = max(before, int(done) / 1e9)
    return Record(calls, max(0.0, end - before))


def start_seconds(record, server, *, nodes, ranks_per_node, remembers, cores=None):
    """Seconds until the last of all ranks has done what is in the record.

    `remembers`  a kind of call -> the seconds for which a node's kernel remembers the answer; what it has read stays
    `cores`      number of cores that all ranks share; by default each rank has one
    """
    simulated = min(nodes, SIMULATED_NODES)
    slower = nodes / simulated
    server = Server(server.seconds_per_call * slower, server.seconds_per_byte * slower)
    world = _World(record, server, remembers, simulated, cores)
    return max(world.run(simulated * ranks_per_node))


class _World:
    """The state of a simulation: until when each queue is busy, and what each node remembers."""

    def __init__(self, record, server, remembers, nodes, cores):
        self.record, self.server, self.remembers = record, server, remembers
        self.memories = [{} for _ in range(nodes)]
        self.calls_done_at = self.reads_done_at = 0.0
        self.cores = [0.0] * cores if cores else None

    def run(self, ranks):
        """Yield the time at which each rank is done."""
        # a rank wants to compute at a time, or to make a call: (time, rank, index of the call, whether to compute)
        events = [(0.0, rank, 0, True) for rank in range(ranks)]
        while events:
            time, rank, index, computes = heapq.heappop(events)
            if computes:
                last = index == len(self.record.calls)
                seconds = self.record.computing if last else self.record.calls[index].computing
                time = self.compute(time, seconds)
                if last:
                    yield time
                else:
                    heapq.heappush(events, (time, rank, index, False))
            else:
                done = self.answer(time, self.memories[rank % len(self.memories)], self.record.calls[index])
                heapq.heappush(events, (done, rank, index + 1, True))

    def compute(self, time, seconds):
        """When a computation ends that could start at `time`."""
        if self.cores is None:
            return time + seconds
        free = heapq.heappop(self.cores)
        heapq.heappush(self.cores, max(time, free) + seconds)
        return max(time, free) + seconds

    def answer(self, time, memory, call):
        """When a call is answered that a rank makes at `time`, by its node's memory or by the server."""
        # the answer about a name has the attributes of its file
        key = "L" if call.kind == "A" else call.kind, call.name, call.offset
        seconds = math.inf if call.kind == "R" else self.remembers.get(call.kind, 0)
        if seconds and time < memory.get(key, -math.inf) + seconds:
            return max(time, memory[key])  # another rank may have asked and wait, too
        if call.kind == "R":
            done = self.reads_done_at = max(time, self.reads_done_at) + call.bytes * self.server.seconds_per_byte
        else:
            done = self.calls_done_at = max(time, self.calls_done_at) + self.server.seconds_per_call
        memory[key] = done
        return done
