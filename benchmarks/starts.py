"""Measures how long ranks take to import torch from a slow shared file system: `benchmarks/run --only slow-fs`.

A few ranks run on the testbed's nodes, each node with a mount of its own (testbed/cluster/slow_fs.py). Larger worlds
replay the calls of one rank.
"""

import contextlib
import math
import os
import re
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.comparison import TREE
from benchmarks.replay import Server, read_record, start_seconds
from testbed.cluster import slow_fs
from testbed.layout import NODES, TestbedError
from testbed.recipes import CONTAINER, VENV, module

#: The name that selects these measurements.
NAME = "slow-fs"
TITLE = "seconds until `import torch` is done in the last rank, from a slow shared file system"
#: Ranks that run: all nodes of the testbed, with as many ranks on each; one rank runs alone.
MEASURED = (1, 4, 16)
#: Cores that they share: all nodes of the testbed have the same ones, and each rank is bound to the first. The job has
#: the others too: they serve and copy the files, as cores of a node that run no rank do.
CORES = 1
BIND = "--cpu-bind=map_cpu:0"
#: Ranks of replayed worlds, with as many on a node as a node of Frontier or LUMI-G has GPUs.
REPLAYED = (64, 256, 1024, 4096)
RANKS_PER_NODE = 8
#: Duration of all measurements of one way, on two idle cores.
SECONDS_PER_WAY = 170
#: Times that each way is measured with so many ranks; the median counts.
REPETITIONS = 3
#: Packs the installation in its argument as its recipe would, with the recipe's default options.
PACK = """
import os, sys
from easybuild.tools.options import set_up_configuration
from pytorch_install.venvs.packing import pack
set_up_configuration(["--allow-use-as-root-and-accept-consequences"], silent=True)
pack(sys.argv[1], "-comp lz4 -no-fragments", os.cpu_count())
"""
PROGRAM = "import time, torch; print('imported at', time.monotonic(), open('/proc/stat').readlines()[1], flush=True)"
IMPORTED = re.compile(r"imported at ([\d.]+) (cpu0 .+)")
#: Seconds in which a venv comes from a tarball to the local disks of so many nodes of Aurora. It travels unpacked, as
#: thousands of files, so this is a limit for one file (https://github.com/saforem2/ezpz/blob/main/docs/cli/yeet.md).
BROADCASTS = ((8, 69.7), (256, 132.9), (4096, 750.6))
BROADCAST_BYTES = 8e9
SERVER = Server(1 / slow_fs.CALLS_PER_SECOND, 1 / slow_fs.BYTES_PER_SECOND)


class Way(NamedTuple):
    """Where the files of a rank come from.

    `name`    in the table
    `recipe`  the module
    `cache`   of the slow file system, or None for the machine's own disk
    `prefix`  of the command
    `packed`  whether the venv is one file
    `staged`  whether this file is copied to the nodes first
    `later`   whether this was done by an earlier step of the job
    """

    name: str
    recipe: str
    cache: str = ""
    prefix: tuple = ()
    packed: bool = False
    staged: bool = False
    later: bool = False


IN_IMAGE = ("bash", "-c", 'exec singularity exec "$SIF" "$@"', "bash")
WAYS = (
    Way("venv on a local disk", VENV),
    Way("image on a local disk", CONTAINER, "", IN_IMAGE),
    Way("venv, no cache", VENV, "none"),
    Way("packed venv, no cache", VENV, "none", packed=True),
    Way("venv", VENV, "nfs"),
    Way("image", CONTAINER, "nfs", IN_IMAGE),
    Way("packed venv", VENV, "nfs", packed=True),
    Way("staged venv", VENV, "nfs", packed=True, staged=True),
    Way("staged venv, later steps", VENV, "nfs", packed=True, staged=True, later=True),
)
#: A job in which steps can run; its number is printed.
ALLOCATE = 'salloc --quiet --no-shell --job-name=slow-fs-$$ "$@" && squeue --noheader --format=%i --name=slow-fs-$$'
END = 'scancel "$0"; while squeue --noheader --job="$0" 2>/dev/null | grep --quiet .; do sleep 0.1; done'


class Start(NamedTuple):
    """How long the ranks of a world take to import torch.

    `way`       name of a Way
    `ranks`     number of ranks
    `seconds`   from the start of the step until the last rank has imported torch, without time of other guests
    `replayed`  whether the world is a simulation
    `calls`     metadata calls per rank that reached the shared file system
    `bytes`     bytes per node that were read from it
    `runs`      number of runs of which `seconds` is the median
    """

    way: str
    ranks: int
    seconds: float
    replayed: bool
    calls: float = 0
    bytes: float = 0
    runs: int = 0


def possible_ways(obstacle):
    """The ways that can be measured; `obstacle` is why no container can run, or None."""
    return [way for way in WAYS if not (obstacle and way.recipe == CONTAINER)]


def measure(session, ways, report, rounds=REPETITIONS):
    """The Starts of some ways; `report` is called with a line after each. Raises TestbedError."""
    with packed_venv(session) as packed:
        environments = {way: environment(session, way, packed) for way in ways}
        for way in ways:  # files are in the machine's memory from now on
            import_torch(session, way, environments[way], 1)
        measured = [
            start for ranks in MEASURED for start in measure_world(session, environments, ranks, report, rounds)
        ]
        records = {way.name: record_calls(session, way, environments[way]) for way in ways if way.cache}
        size = packed.stat().st_size
    starts = list(measured)
    for way in ways:
        alone = next(start.seconds for start in measured if (start.way, start.ranks) == (way.name, 1))
        for start in replay_way(way, records.get(way.name), alone, size):
            report(f"{way.name}, {start.ranks} ranks replayed: {start.seconds:.1f} s")
            starts.append(start)
    return starts


def measure_world(session, environments, ranks, report, rounds):
    """The Starts of so many ranks that run, each way in turn: a round of all, then the next round."""
    runs = {way: [] for way in environments}
    for _ in range(rounds):
        for way, env in environments.items():
            runs[way].append(import_torch(session, way, env, ranks))
            report(f"{way.name}, {ranks} ranks: {runs[way][-1][0]:.1f} s")
    return [
        Start(
            way.name, ranks, median(run[0] for run in own), False,
            own[-1][1].calls / ranks, own[-1][1].bytes / min(ranks, len(NODES)), rounds,
        )
        for way, own in runs.items()
    ]  # fmt: skip


def environment(session, way, packed):
    """The variables of a step."""
    env = session.environment(f"module load {module(way.recipe)}")
    env.pop("PYTORCH_PACKED", None)
    if way.packed:
        env["PYTORCH_PACKED"] = str(packed)
    if way.staged:
        env.update({"PYTORCH_LAUNCH_STAGE": "1", "PYTORCH_LAUNCH_STAGE_DIR": str(session.layout.cluster / "disk")})
    return env


@contextlib.contextmanager
def packed_venv(session):
    """Yield the file that a recipe with `packed = True` adds to the venv module; it is there during the block."""
    root = Path(session.environment(f"module load {module(VENV)}")["EBROOTPYTORCH"])
    written = [root / "venv.squashfs", root / "provenance" / "packed.json"]
    env = {**os.environ, "PYTHONPATH": str(TREE / "easyblocks"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        session.run([session.layout.eb_venv / "bin" / "python", "-c", PACK, root], env)
        yield written[0]
    finally:
        for file in written:
            file.unlink(missing_ok=True)


def import_torch(session, way, env, ranks, record=None):
    """Run ranks that import torch, with an empty cache of the slow file system.

    Returns the seconds until the last one is done, what the server served, and the times of start and end. The seconds
    are without those in which the machine's host ran other guests on the ranks' core.
    """
    size = [f"-N{min(ranks, len(NODES))}", f"-n{ranks}", "--overcommit"]
    command = [*way.prefix, "conda-python-distributed", "-c"]
    with contextlib.ExitStack() as stack:
        server = None
        if way.cache:
            software = session.layout.easybuild / "software"
            server = stack.enter_context(slow_fs.mounted(session.layout, software, cache=way.cache, record=record))
        number = stack.enter_context(job(session, [*size, "--exclusive"], env))
        step = ["srun", f"--jobid={number}", *size, BIND, "--distribution=cyclic", *command]
        if way.later:
            session.run([*step, "pass"], env)
        before = server.counts() if server else slow_fs.Counts(0, 0)
        start, stolen = time.monotonic(), stolen_seconds(ranks_core())
        ends = [(float(end), core) for end, core in IMPORTED.findall(session.run([*step, PROGRAM], env))]
        after = server.counts() if server else before
        counts = slow_fs.Counts(after.calls - before.calls, after.bytes - before.bytes)
    if len(ends) != ranks:
        raise TestbedError(f"{len(ends)} ranks of {ranks} imported torch.")
    end, core = max(ends)
    return end - start - (stolen_seconds(core) - stolen), counts, (start, end)


def ranks_core():
    """The line of /proc/stat for the core of the ranks."""
    with Path("/proc/stat").open() as lines:
        return next(line for line in lines if line.startswith("cpu0 "))


def stolen_seconds(line):
    """Seconds since the machine's start in which its host ran other guests on a core, by its line of /proc/stat."""
    return int(line.split()[8]) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def job(session, size, env):
    """Yield the number of a job with options of its `size`; it has ended after the block."""
    number = session.run(["bash", "-c", ALLOCATE, "bash", *size], env).strip()
    try:
        yield number
    finally:
        session.run(["bash", "-c", END, number], env)


def replay_way(way, record, alone, size):
    """Yield the Starts of worlds that replay the Record of one rank, the last measured number of ranks first.

    `alone` are the seconds of a lone rank, `size` the bytes of the file that is staged.
    """
    if record is None:  # each rank has a core of its own, each node a disk
        yield from (Start(way.name, ranks, alone, True) for ranks in REPLAYED)
        return
    if way.staged:  # the file is on the nodes
        record = record._replace(calls=[call._replace(bytes=0) for call in record.calls])
    worlds = [(MEASURED[-1], len(NODES)), *((ranks, ranks // RANKS_PER_NODE) for ranks in REPLAYED)]
    for ranks, nodes in worlds[way.staged :]:
        cores = CORES if ranks == MEASURED[-1] else None
        remembers, own = seconds_remembered(way.cache), ranks // nodes
        seconds = start_seconds(record, SERVER, nodes=nodes, ranks_per_node=own, remembers=remembers, cores=cores)
        if way.staged and not way.later:
            seconds += size * (SERVER.seconds_per_byte + broadcast_seconds_per_byte(nodes))
        yield Start(way.name, ranks, seconds, True)


def record_calls(session, way, env):
    """The Record of one rank. Every use of a name is in it: the replay decides what a kernel remembers."""
    env = {name: value for name, value in env.items() if name != "PYTORCH_LAUNCH_STAGE"}
    records = session.scratch / "records"
    records.mkdir(exist_ok=True)
    _, _, (start, end) = import_torch(session, way._replace(cache="none"), env, 1, record=records)
    texts = [records.joinpath(node).read_text() for node in NODES]
    return read_record(max(texts, key=len), start, end)


def broadcast_seconds_per_byte(nodes):
    """Seconds that a copy to so many nodes takes: between those of `BROADCASTS`, a straight line of both logarithms."""
    (few, short), (many, long) = next(
        pair for pair in zip(BROADCASTS, BROADCASTS[1:]) if nodes <= pair[1][0] or pair[1] == BROADCASTS[-1]
    )
    return short * (long / short) ** (math.log(nodes / few) / math.log(many / few)) / BROADCAST_BYTES


def seconds_remembered(cache):
    """For how long a node remembers the answer to each kind of call."""
    seconds = slow_fs.CACHES[cache]
    names, attributes = seconds["names"], seconds["directory-attributes"]
    return {"L": names, "K": names, "A": attributes, "D": attributes}
