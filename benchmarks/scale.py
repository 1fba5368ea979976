"""What a rank of a large world pays before Python starts, without the world; called by `run --scale`.

The variables of a step are enough for `conda-python-distributed --dry-run`, so that one rank of 32,768 can be
measured alone.
"""

from statistics import median
from typing import NamedTuple

from testbed.recipes import VENV, module

from benchmarks.instructions import instructions_of
from benchmarks.measurements import seconds_of
from benchmarks.steps import step_variables

GPUS = 8
#: Times that each rank is timed, in turn with the others.
REPETITIONS = 11
COMMAND = ("conda-python-distributed", "--dry-run")


class World(NamedTuple):
    """A step to be: its node list as Slurm abbreviates it, and the names of its nodes."""

    node_list: str
    nodes: list


class Cost(NamedTuple):
    """What one rank of a world pays.

    `world`         the World
    `rank`          its number, from 0
    `instructions`  of the whole command
    `seconds`       from start to end, a median
    """

    world: World
    rank: int
    instructions: int
    seconds: float


def consecutive(count):
    """A world of `count` nodes with consecutive numbers."""
    numbers = f"[{1:06d}-{count:06d}]" if count > 1 else f"{1:06d}"
    return World(f"nid{numbers}", [f"nid{number:06d}" for number in range(1, count + 1)])


def scattered(count):
    """A world of `count` nodes as a full machine has them free: in runs of 1 to 8, with gaps between."""
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

    `report` is called with a line for each instruction count. Raises TestbedError.
    """
    loaded = session.environment(f"module load {module(VENV)}")
    ranks = [(world, rank) for world in WORLDS for rank in representatives(len(world.nodes) * GPUS)]
    environments = [
        {**loaded, **step_variables(node_list=world.node_list, nodes=world.nodes, tasks_per_node=GPUS, rank=rank)}
        for world, rank in ranks
    ]
    counts = []
    for (world, rank), env in zip(ranks, environments):
        counts.append(instructions_of(session, env, COMMAND))
        report(f"rank {rank} on {len(world.nodes)} nodes: {counts[-1] / 1e6:.1f} million instructions")
    times = [[seconds_of(session, env, COMMAND) for env in environments] for _ in range(REPETITIONS)]
    return [Cost(*rank, count, median(column)) for rank, count, column in zip(ranks, counts, zip(*times))]


def representatives(size):
    """The first, a middle and the last rank of a world."""
    return (0, size // 2, size - 1)
