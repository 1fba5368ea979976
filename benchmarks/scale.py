"""Measures what one rank of a large world costs before Python starts, without starting the world.

`conda-python-distributed --dry-run` needs only the variables of a step, so one rank of 32,768 can run alone.
"""

from statistics import median
from typing import NamedTuple, Optional

from benchmarks import store
from benchmarks.instructions import count_instructions
from benchmarks.step_variables import step_variables
from testbed.recipes import VENV, module

GPUS = 8
#: Number of times that each rank is timed, in turn with the others.
REPETITIONS = 11
SHOWN_CHARACTERS = 28
COMMAND = ("conda-python-distributed", "--dry-run")


class World(NamedTuple):
    """The nodes of a step: their list as Slurm abbreviates it, and their names."""

    node_list: str
    nodes: list


class Cost(NamedTuple):
    """What one rank of a world costs.

    `nodes`         number of nodes of its world
    `node_list`     their list, as the table shows it
    `rank`          its number, from 0
    `instructions`  of the command
    `seconds`       from start to end, a median
    `served`        what its store serves, a store.Served; None on ranks other than 0, which have none
    """

    nodes: int
    node_list: str
    rank: int
    instructions: int
    seconds: float
    served: Optional[store.Served] = None


def consecutive(count):
    """A world of `count` nodes with consecutive numbers."""
    numbers = f"[{1:06d}-{count:06d}]" if count > 1 else f"{1:06d}"
    return World(f"nid{numbers}", [f"nid{number:06d}" for number in range(1, count + 1)])


def scattered(count):
    """A world of `count` nodes in runs of 1 to 8 with gaps between, as on a nearly full machine."""
    ranges, nodes = [], []
    number = 1
    while len(nodes) < count:
        last = number + min(1 + len(ranges) % 8, count - len(nodes)) - 1
        ranges.append(f"{number:06d}-{last:06d}" if last > number else f"{number:06d}")
        nodes += [f"nid{each:06d}" for each in range(number, last + 1)]
        number = last + 2
    return World(f"nid[{','.join(ranges)}]", nodes)


WORLDS = (consecutive(1), consecutive(16), consecutive(256), consecutive(4096), scattered(4096))


def measure(session, report):
    """The Cost of the first, a middle and the last rank of each of `WORLDS`.

    `report` is called with a line after each count of instructions. Raises TestbedError.
    """
    loaded = session.environment(f"module load {module(VENV)}")
    ranks = [(world, rank) for world in WORLDS for rank in representatives(len(world.nodes) * GPUS)]
    environments = [
        {**loaded, **step_variables(node_list=world.node_list, nodes=world.nodes, tasks_per_node=GPUS, rank=rank)}
        for world, rank in ranks
    ]
    counts = []
    for (world, rank), env in zip(ranks, environments):
        counts.append(count_instructions(session, env, COMMAND))
        report(f"rank {rank} on {len(world.nodes)} nodes: {counts[-1] / 1e6:.1f} million instructions")
    stores = store.measure(session, loaded)
    report(f"stores of {', '.join(map(str, store.CLIENTS))} clients are measured")
    times = [[session.time(COMMAND, env) for env in environments] for _ in range(REPETITIONS)]
    return [
        Cost(
            len(world.nodes),
            shorten(world.node_list),
            rank,
            count,
            median(column),
            stores.served(len(world.nodes) * GPUS) if rank == 0 else None,
        )
        for (world, rank), count, column in zip(ranks, counts, zip(*times))
    ]


def shorten(node_list):
    """A node list for a cell of the table, in Markdown."""
    if len(node_list) <= SHOWN_CHARACTERS:
        return f"`{node_list}`"
    return f"`{node_list[:SHOWN_CHARACTERS]}...`, {len(node_list)} characters"


def representatives(size):
    """The first, a middle and the last rank of a world."""
    return (0, size // 2, size - 1)
