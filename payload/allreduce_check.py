"""Check the network between all ranks with all-reduces: right sums, fast enough, over the fast network, no slow rank.

    srun -N2 --ntasks-per-node=2 conda-python-distributed -u $PAYLOAD/allreduce_check.py [--gpu]

Rank 0 prints a table over message sizes, then one line for each question; a line that begins with FAIL names the
rank, and makes the exit status 1.

Bandwidths are those of nccl-tests (https://github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): the algorithm's is size
over time; the bus's is that times 2 (n - 1) / n for n ranks, so that it can be compared with what the hardware can do,
whatever n is. GB are 10^9 bytes.

The cluster profile names what is expected:

PYTORCH_ALLREDUCE_BUSBW   bus bandwidths at least, as `<GB/s>@<size>@<nodes>x<ranks per node>`, separated by spaces
PYTORCH_FAST_NETWORK      what NCCL calls the network that is to carry the data between nodes: `IB`, `cxi`
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import re
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from training import TrainingError
from training.distributed import World, process_group
from training.roll_call import RollCall

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
SMALLEST = 4  # bytes: one number of type float32
STEP = 4  # from one size to the next
PERIOD = 13  # of the numbers in a message, so that pieces that change places are noticed
ROUNDS = 30  # in which ranks are compared; a mean over them, as a rank may be slow now and then
EXCHANGED = 2**20  # bytes between two ranks that are compared
MOST_NAMES = 8  # of ranks in one line
ANSWER_SECONDS = 10  # that a rank has to answer after a collective failed; all that wait fail at about the same time
STAY_SECONDS = 2  # that rank 0, whose process may hold the store, stays for those that began to ask later
CLOSE_SECONDS = 5  # at most, to close connections
PATIENCE = 0.9  # of the time limit, as at its end torch ends this process without a word on the rank


class Threshold(NamedTuple):
    """The least bus bandwidth, in GB/s, of messages of ``size`` bytes; ``shape`` is (nodes, ranks per node) or None."""

    busbw: float
    size: int
    shape: tuple[int, int] | None


class Network(NamedTuple):
    """What NCCL's log of one rank says: the network's name, libfabric's provider, the networks of its channels."""

    name: str | None
    provider: str | None
    channels: tuple[str, ...]
    warning: str | None

    def __str__(self) -> str:
        provider = f", provider {self.provider}" if self.provider else ""
        channels = f", channels over {' and '.join(self.channels)}" if self.channels else ""
        return f"{self.name or 'unknown'}{provider}{channels}"


class Ranks:
    """The ranks of this run as the check needs them; made once, inside the process group.

    ``gather`` goes by TCP between CPUs: with NCCL, the network that is under test does not carry the verdict.
    """

    def __init__(self, world: World, timeout: float, read_log: Callable[[], str]):
        self.rank, self.size, self.device = world.rank, world.size, world.device
        self.timeout, self.read_log = timeout, read_log
        self._hosts_group = world.host_group
        self.hosts = self.gather(platform.node())
        self.nodes = list(dict.fromkeys(self.hosts))

    def gather(self, value):
        """Return the values of all ranks, in their order, on each of them; it waits for all."""
        values = [None] * self.size
        dist.all_gather_object(values, value, group=self._hosts_group)
        return values

    @property
    def shape(self) -> tuple[int, int] | None:
        """Nodes and ranks per node; None where the nodes differ."""
        counts = {self.hosts.count(node) for node in self.nodes}
        return (len(self.nodes), counts.pop()) if len(counts) == 1 else None

    @property
    def ring(self) -> list[int]:
        """The ranks in a ring with this one: those at its place on each node; on one node all."""
        return self.peers(self.rank) if len(self.nodes) > 1 else list(range(self.size))

    def peers(self, rank: int) -> list[int]:
        """Return the ranks at the place of ``rank`` on each node, of which none may be missing."""
        members = [[other for other, host in enumerate(self.hosts) if host == node] for node in self.nodes]
        own = next(ranks for ranks in members if rank in ranks)
        return [ranks[own.index(rank)] for ranks in members]

    def name(self, ranks: Sequence[int]) -> str:
        """Name some of the ranks, with their hosts, for people."""
        names = [f"{rank} ({self.hosts[rank]})" for rank in ranks[:MOST_NAMES]]
        more = f" and {len(ranks) - MOST_NAMES} more" if len(ranks) > MOST_NAMES else ""
        return f"rank{'s' * (len(ranks) > 1)} {', '.join(names)}{more}"

    def wait_for_device(self) -> None:
        """Wait until the device has done what it was given; end this process where a collective never ends."""
        if self.device.type != "cuda":
            return
        done = torch.cuda.Event()
        done.record()
        deadline = time.monotonic() + PATIENCE * self.timeout
        while not done.query():
            if time.monotonic() > deadline:
                warning = last_warning(self.read_log())
                print(
                    f"FAIL {self.name([self.rank])}: a collective of NCCL did not end within "
                    f"{PATIENCE * self.timeout:g} s{warning}; see which ranks do not say this, try without their nodes",
                    file=sys.stderr, flush=True,
                )  # fmt: skip
                os._exit(1)  # anything else would wait for the device

    def new_group(self, members: Sequence[int], **options) -> dist.ProcessGroup:
        """Make a group of some of the ranks, with the time limit of this run."""
        return dist.new_group(members, timeout=timedelta(seconds=self.timeout), **options)


def read_size(text: str) -> int:
    """Turn ``4``, ``64K``, ``128MiB`` into bytes; K, M, G are powers of 1024. Raises ValueError."""
    match = re.fullmatch(r"(\d+)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match or int(match[1]) < 1:
        raise ValueError(f"{text!r} is no size; write one such as 4, 64K or 128MiB")
    return int(match[1]) * UNITS[match[2].upper()]


def show_size(size: int) -> str:
    """Turn bytes into ``4 B`` or ``128 MiB``."""
    for unit in ("G", "M", "K"):
        if size % UNITS[unit] == 0:
            return f"{size // UNITS[unit]} {unit}iB"
    return f"{size} B"


def read_thresholds(text: str) -> list[Threshold]:
    """Read ``80.75@128MiB@2x8 10@1M``; without its last part one is for any number of ranks. Raises ValueError."""
    thresholds = []
    for word in text.split():
        busbw, _, rest = word.partition("@")
        size, _, shape = rest.partition("@")
        nodes, _, ranks = shape.partition("x")
        try:
            thresholds.append(Threshold(float(busbw), read_size(size), (int(nodes), int(ranks)) if shape else None))
        except ValueError:
            raise ValueError(
                f"{word!r} is no threshold; write <GB/s>@<size>[@<nodes>x<ranks per node>], such as 80.75@128MiB@2x8"
            ) from None
    return thresholds


def message_sizes(largest: int, thresholds: Sequence[Threshold]) -> list[int]:
    """Return the sizes in bytes, ascending: 4 B times powers of 4, and those of thresholds, up to the largest."""
    powers = range(int(math.log(largest / SMALLEST, STEP) + 1e-9) + 1)
    sizes = {SMALLEST * STEP**power for power in powers} | {threshold.size for threshold in thresholds}
    return sorted(size for size in sizes if SMALLEST <= size <= largest)


def bus_factor(ranks: int) -> float:
    """Return the bus bandwidth of an all-reduce over its algorithm bandwidth, as nccl-tests defines it."""
    return 2 * (ranks - 1) / ranks


def sum_of(ranks: Sequence[int], size: int, device: torch.device) -> torch.Tensor:
    """Return what ``ranks`` contribute to a message of ``size`` bytes, added up: float32 [size // 4], exact."""
    count = size // SMALLEST
    numbers = [sum((7 * place + 3 * rank) % PERIOD for rank in ranks) for place in range(PERIOD)]
    return torch.tensor(numbers, dtype=torch.float32, device=device).repeat(-(-count // PERIOD))[:count]


def sums_right(ranks: Ranks, members: Sequence[int], size: int, group=None) -> bool:
    """Add up the contributions of ``members``, who are the ``group``; return whether this rank has the right sums."""
    message = sum_of([ranks.rank], size, ranks.device)
    dist.all_reduce(message, group=group)
    ranks.wait_for_device()
    return torch.equal(message, sum_of(members, size, ranks.device))


def time_all_reduce(ranks: Ranks, size: int) -> tuple[float, bool]:
    """Return the seconds of one all-reduce of ``size`` bytes, and whether zeros stayed zeros all the time."""
    message = torch.zeros(size // SMALLEST, device=ranks.device)
    iterations = 20 if ranks.device.type == "cuda" else min(20, max(3, 2**25 // size))
    for _ in range(2):
        dist.all_reduce(message)
    ranks.wait_for_device()
    ranks.gather(None)
    start = time.perf_counter()
    for _ in range(iterations):
        dist.all_reduce(message)
    ranks.wait_for_device()
    return (time.perf_counter() - start) / iterations, not message.any()


def measure(ranks: Ranks, size: int) -> tuple[float, list[int]]:
    """Return the seconds of one all-reduce of ``size`` bytes on the slowest rank, and the ranks with wrong sums."""
    everybody = range(ranks.size)
    right = sums_right(ranks, everybody, size)
    seconds, zeros = time_all_reduce(ranks, size)
    right = sums_right(ranks, everybody, size) and right and zeros
    results = ranks.gather((seconds, right))
    return max(seconds for seconds, _ in results), [rank for rank, (_, right) in enumerate(results) if not right]


def find_wrong(ranks: Ranks, size: int) -> list[list[int]]:
    """Return the smallest sets of ranks whose sums are wrong: a rank that is wrong alone, or ranks between which it is.

    Halves of the ranks add up by themselves, then halves of each half that is wrong, and so on.
    """
    found, suspects = [], [list(range(ranks.size))]
    while suspects:
        wrong_parts = []
        for suspect in suspects:
            middle = (len(suspect) + 1) // 2
            halves = [half for half in (suspect[:middle], suspect[middle:]) if half]
            wrong_halves = [half for half in halves if not _right_together(ranks, half, size)]
            found += [half for half in wrong_halves if len(half) == 1]
            wrong_parts += [half for half in wrong_halves if len(half) > 1]
            if not wrong_halves:
                found.append(suspect)
        suspects = wrong_parts
    return sorted(found)


def _right_together(ranks: Ranks, members: list[int], size: int) -> bool:
    """Return whether ``members`` have the right sums in a group of their own; every rank calls it."""
    group = ranks.new_group(members)
    return all(ranks.gather(ranks.rank not in members or sums_right(ranks, members, size, group)))


def time_alone(ranks: Ranks) -> float:
    """Return the mean seconds that this rank takes for work that waits for nobody: it multiplies, copies, reduces.

    All ranks begin each round together, so that those that share something slow each other down as in training.
    """
    alone = ranks.new_group([ranks.rank], use_local_synchronization=True)  # the others need not join in
    side = 4096 if ranks.device.type == "cuda" else 256
    matrix = torch.ones(side, side, device=ranks.device) / side
    host = torch.zeros(side, side)

    def work() -> float:
        start = time.perf_counter()
        for _ in range(4):
            matrix.copy_(matrix @ matrix)
            host.copy_(matrix)
            dist.all_reduce(matrix, group=alone)
        ranks.wait_for_device()
        return time.perf_counter() - start

    work()
    seconds = []
    for _ in range(ROUNDS):
        ranks.gather(None)
        seconds.append(work())
    return statistics.mean(seconds)


def pairs_in_turn(count: int) -> list[list[tuple[int, int]]]:
    """Return the neighbours on a ring of ``count`` places as lists of pairs, within which no place is there twice."""
    pairs = [(place, (place + 1) % count) for place in range(count if count > 2 else count - 1)]
    odd_one = pairs[count - 1 :] if count % 2 else []
    turns = (pairs[: len(pairs) - len(odd_one) : 2], pairs[1 : len(pairs) - len(odd_one) : 2], odd_one)
    return [turn for turn in turns if turn]


def time_with_neighbours(ranks: Ranks) -> float | None:
    """Return the mean seconds of an exchange with the faster one of this rank's neighbours; None without any.

    The neighbours are on other nodes where there are several, at the same place there: all paths are alike then.
    """
    ring = ranks.ring
    place = ring.index(ranks.rank)
    outgoing = torch.zeros(EXCHANGED // SMALLEST, device=ranks.device)
    incoming = torch.zeros_like(outgoing)
    times = []
    for turn in pairs_in_turn(len(ring)):
        partner = next((ring[sum(pair) - place] for pair in turn if place in pair), None)
        ranks.gather(None)
        for round_number in range(ROUNDS if partner is not None else 0):
            if round_number == 1:  # the first one connects
                start = time.perf_counter()
            exchange = [dist.P2POp(dist.isend, outgoing, partner), dist.P2POp(dist.irecv, incoming, partner)]
            for request in dist.batch_isend_irecv(exchange):
                request.wait()
            ranks.wait_for_device()
        if partner is not None:
            times.append((time.perf_counter() - start) / (ROUNDS - 1))
    return min(times, default=None)


def slow_ones(seconds: Sequence[float | None], factor: float) -> list[int]:
    """Return the ranks that took ``factor`` times as long as the middle one of all, or longer."""
    known = sorted(value for value in seconds if value is not None)
    if not known:
        return []
    middle = known[(len(known) - 1) // 2]
    return [rank for rank, value in enumerate(seconds) if value is not None and value >= factor * middle]


def read_nccl_log(text: str) -> Network:
    """Read the lines that NCCL and RCCL write with NCCL_DEBUG=INFO and the subsystems INIT and NET.

    Sources: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/logging.html, and for libfabric
    https://github.com/aws/aws-ofi-nccl, whose versions differ in a capital letter. The last network is the one in use.
    """
    names = re.findall(r"NCCL INFO Using network (.+?)\s*$", text, re.MULTILINE)
    providers = re.findall(r"NET/OFI Selected provider is ([\w;]+)", text, re.IGNORECASE)
    channels = re.findall(r"Channel .* via NET/([^/\n]+)/", text)
    warnings = re.findall(r"NCCL WARN (.+?)\s*$", text, re.MULTILINE)
    return Network(
        names[-1] if names else None,
        providers[-1] if providers else None,
        tuple(sorted(set(channels))),
        warnings[0] if warnings else None,
    )


def last_warning(log: str) -> str:
    """Return NCCL's last warning in its log as a part of a sentence, "" without one."""
    warnings = re.findall(r"NCCL WARN (.+?)\s*$", log, re.MULTILINE)
    return f" (NCCL warns: {warnings[-1]})" if warnings else ""


def is_fast(network: Network, expected: str) -> bool:
    """Return whether the network, or its provider, is the expected one, and nothing goes over TCP.

    NCCL's plugins for InfiniBand have names that begin like its own: IB, IBext_v8.
    """
    names = [name.lower() for name in (network.name, network.provider) if name]
    sockets = "Socket" in (network.name, *network.channels)  # also after a provider was chosen
    return any(name.startswith(expected.lower()) for name in names) and not sockets


def check_network(ranks: Ranks, network: Network | None, expected: str | None) -> str:
    """Return the line on the network, which begins with FAIL if it is not the expected one. Every rank calls it."""
    networks = ranks.gather(network)
    if network is None:
        return "network: TCP, as gloo has no other; nothing to judge"
    if len(ranks.nodes) == 1:
        return "network: none is needed on one node; nothing to judge"
    if not expected:
        return f"network: {networks[0]}; PYTORCH_FAST_NETWORK names none, so nothing to judge"
    slow = [rank for rank, network in enumerate(networks) if not is_fast(network, expected)]
    if not slow:
        return f"network: {networks[0]}: the fast one, as PYTORCH_FAST_NETWORK={expected} wants"
    warning = networks[slow[0]].warning
    return (
        f"FAIL network: {ranks.name(slow)} uses {networks[slow[0]]}, and not {expected} as PYTORCH_FAST_NETWORK wants"
        f"{f' (NCCL warns: {warning})' if warning else ''}; see that the plugin or the cards are there with "
        "pytorch-doctor, and that the container has its binds"
    )


def check_sums(ranks: Ranks, wrong: Mapping[int, list[int]], sizes: Sequence[int]) -> str:
    """Return the line on the sums, which names who is wrong. Every rank calls it."""
    if not wrong:
        return f"sums: right in all {len(sizes)} sizes on all ranks"
    size = min(wrong)
    found = find_wrong(ranks, size)
    alone = [members[0] for members in found if len(members) == 1]
    between = [members for members in found if len(members) > 1]
    faults = [f"{ranks.name(alone)} adds wrong numbers, also alone"] if alone else []
    faults += [f"between {ranks.name(members)} numbers go wrong" for members in between]
    return (
        f"FAIL sums: wrong from {show_size(size)} on {ranks.name(wrong[size])}: {'; '.join(faults)}; "
        "leave that node out and have its memory, GPU and network card tested"
    )


def fitting_ones(ranks: Ranks, thresholds: Sequence[Threshold]) -> list[Threshold]:
    """Return the thresholds for these nodes and ranks; none for one rank, which sends nothing."""
    return [threshold for threshold in thresholds if ranks.size > 1 and threshold.shape in (None, ranks.shape)]


def check_bandwidth(ranks: Ranks, thresholds: Sequence[Threshold], measured: Mapping[int, float]) -> str:
    """Return the line on the bandwidth, from the bus bandwidths (GB/s) by size."""
    if ranks.size == 1:
        return "bandwidth: one rank sends nothing; nothing to judge"
    shape = "x".join(map(str, ranks.shape)) if ranks.shape else "nodes that differ"
    fitting = fitting_ones(ranks, thresholds)
    if not fitting:
        named = ", ".join("x".join(map(str, threshold.shape)) for threshold in thresholds)
        others = f"; there is one for {named}" if named else ""
        return f"bandwidth: no threshold is named for {shape} (nodes x ranks){others}; --threshold gives one"
    missed = [threshold for threshold in fitting if measured.get(threshold.size, math.inf) < threshold.busbw]
    if missed:
        size = missed[0].size
        return (
            f"FAIL bandwidth: {measured[size]:.2f} GB/s at {show_size(size)}, where {missed[0].busbw:g} GB/s are "
            "expected; look at the network's line, then try other nodes"
        )
    reached = [f"{busbw:g} GB/s at {show_size(size)}" for busbw, size, _ in fitting if size in measured]
    if not reached:
        return f"bandwidth: not judged, the threshold is for {show_size(fitting[0].size)}: give --max-size"
    return f"bandwidth: at least {', '.join(reached)}, as expected"


def check_speed(ranks: Ranks, factor: float) -> str:
    """Return the line on slow ranks. Every rank calls it."""
    kinds = {"alone": ranks.gather(time_alone(ranks))}
    if ranks.shape:
        kinds[f"exchanging {show_size(EXCHANGED)}"] = ranks.gather(time_with_neighbours(ranks))
    faults, ranges = [], []
    for kind, seconds in kinds.items():
        slow = slow_ones(seconds, factor)
        if ranks.shape and len(ranks.nodes) > 2:  # slow at one place of every node is how these nodes are built
            slow = [rank for rank in slow if not set(ranks.peers(rank)) <= set(slow)]
        known = [1e3 * value for value in seconds if value is not None]
        if slow:
            times = ", ".join(f"{1e3 * seconds[rank]:.2f}" for rank in slow)
            others = [1e3 * value for rank, value in enumerate(seconds) if value is not None and rank not in slow]
            faults.append(f"{ranks.name(slow)}: {times} ms {kind}, others {min(others):.2f} to {max(others):.2f} ms")
        if known:
            ranges.append(f"{min(known):.2f} to {max(known):.2f} ms {kind}")
    if faults:
        return f"FAIL speed: {'; '.join(faults)}; see what else runs there, and the clocks of CPU, GPU and network card"
    return f"speed: no rank is slow: {', '.join(ranges)}"


def measure_all(
    ranks: Ranks, sizes: Sequence[int], thresholds: Sequence[Threshold], report: Callable[[str], None]
) -> tuple[dict[int, float], dict[int, list[int]]]:
    """Print the table; return the bus bandwidths in GB/s and the ranks with wrong sums, both by message size."""
    report(f"{'size':>10}{'time us':>12}{'algorithm GB/s':>17}{'bus GB/s':>12}  verdict")
    bandwidths, wrong = {}, {}
    for size in sizes:
        seconds, wrong_here = measure(ranks, size)
        algorithm = size / seconds / 1e9
        bandwidths[size] = bus = algorithm * bus_factor(ranks.size)
        least = [threshold.busbw for threshold in thresholds if threshold.size == size]
        said = "right" + (f", {'reaches' if bus >= max(least) else 'BELOW'} {max(least):g} GB/s" if least else "")
        if wrong_here:
            wrong[size], said = wrong_here, "WRONG"
        report(f"{show_size(size):>10}{seconds * 1e6:>12.1f}{algorithm:>17.3f}{bus:>12.3f}  {said}")
    return bandwidths, wrong


def close_connections(world: World, error: Exception) -> None:
    """Close the connections between CPUs, so that ranks that wait for this one fail in turn and answer.

    The group of NCCL stays: its orderly end would wait for the others.
    """
    traceback.clear_frames(error.__traceback__)  # they hold groups of some of the ranks
    close = threading.Thread(target=dist.destroy_process_group, args=(world.host_group,), daemon=True)
    close.start()
    close.join(CLOSE_SECONDS)


def end_with_names(roll_call: RollCall, timeout: float, error: Exception) -> None:
    """End this process with a line that names the ranks that do not answer; return where all ranks answer."""
    missing = roll_call.missing(ANSWER_SECONDS)
    if missing == []:
        if roll_call.rank == 0:
            time.sleep(STAY_SECONDS)
        return
    names = ", ".join(missing[:MOST_NAMES]) if missing else "0, or the process that holds its store,"
    more = f" and {len(missing) - MOST_NAMES} more" if missing and len(missing) > MOST_NAMES else ""
    timed_out = re.search("timed? ?out", str(error), re.IGNORECASE)
    failed = f"did not end within {timeout:g} s" if timed_out else "failed"
    several = missing is not None and len(missing) > 1
    fault = "one of them, or its node, is at fault" if several else "it hangs or has ended"
    print(
        f"FAIL rank {names}{more}: no answer, and a collective {failed}: {fault} "
        f"({str(error).splitlines()[0]}); look at its processes and its log, try without its node",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    if roll_call.rank == 0:
        time.sleep(STAY_SECONDS)
    os._exit(1)  # anything else may wait for that rank


def check(options: argparse.Namespace, world: World, read_log: Callable[[], str]) -> bool:
    """Run all checks; return on every rank whether all is well. Rank 0 prints."""
    ranks = Ranks(world, options.timeout, read_log)
    fitting = fitting_ones(ranks, options.threshold)
    sizes = message_sizes(options.max_size, fitting)

    def report(line: str) -> None:
        if ranks.rank == 0:
            print(line, flush=True)

    report(
        f"all-reduce check: ranks {ranks.size}, nodes {len(ranks.nodes)}, backend {dist.get_backend()}, "
        f"device {ranks.device}, torch {torch.__version__}"
    )
    bandwidths, wrong = measure_all(ranks, sizes, fitting, report)
    network = read_nccl_log(read_log()) if options.gpu else None
    lines = [
        check_sums(ranks, wrong, sizes),
        check_bandwidth(ranks, options.threshold, bandwidths),
        check_speed(ranks, options.slow),
        check_network(ranks, network, os.environ.get("PYTORCH_FAST_NETWORK")),
    ]
    for line in lines:
        report(line)
    failed = [line.split(":")[0][len("FAIL ") :] for line in lines if line.startswith("FAIL")]
    report(f"all-reduce check: {'FAIL: ' + ', '.join(failed) if failed else 'ok'}")
    ranks.gather(None)  # the first rank that ends with an error may end the step, and rank 0 has to print before
    return not failed


def log_nccl(environment: MutableMapping[str, str]) -> Callable[[], str]:
    """Have NCCL write its log into memory, so that no file is left behind; return a function that reads it.

    NCCL goes by these variables from its first collective on; what was exported of them is replaced.
    """
    log = os.memfd_create("nccl.log")
    environment.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=f"/proc/self/fd/{log}")

    def read() -> str:
        return os.pread(log, os.fstat(log).st_size, 0).decode(errors="replace")

    return read


def main(options: argparse.Namespace) -> None:
    """Check, or end with status 1 and one last line that names the rank and its fault."""
    read_log = log_nccl(os.environ)
    try:
        with process_group(os.environ, use_gpu=options.gpu, timeout=options.timeout) as world:
            roll_call = RollCall(world.rank, world.size)
            try:
                passed = check(options, world, read_log)
            except RuntimeError as error:
                close_connections(world, error)
                end_with_names(roll_call, options.timeout, error)
                raise
        sys.exit(0 if passed else 1)
    except TrainingError as error:
        fault = str(error)
    except Exception as error:
        traceback.print_exc()
        fault = f"{type(error).__name__}: {error}{last_warning(read_log())}"
    sys.exit(f"rank {os.environ.get('RANK', '0')}: {fault}")


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the options; the thresholds come from the profile where none is given."""

    def as_argument(read):
        def convert(text: str):
            try:
                return read(text)
            except ValueError as error:
                raise argparse.ArgumentTypeError(str(error)) from None

        return convert

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="NCCL between GPUs; without it gloo between CPUs")
    parser.add_argument(
        "--max-size", type=as_argument(read_size), metavar="SIZE",
        help="largest message (default: 256M with --gpu, else 16M)",
    )  # fmt: skip
    parser.add_argument(
        "--threshold", type=as_argument(read_thresholds), metavar="GB/S@SIZE",
        default=os.environ.get("PYTORCH_ALLREDUCE_BUSBW", ""),
        help="least bus bandwidth, such as 20@64M (default: PYTORCH_ALLREDUCE_BUSBW)",
    )  # fmt: skip
    parser.add_argument(
        "--slow", type=float, metavar="FACTOR",
        help="a rank is slow that takes this many times as long as the others (default: 1.5 with --gpu, else 3, as "
        "CPUs are shared)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=float, default=120, metavar="S", help="seconds to wait for a rank (default: %(default)g)"
    )
    options = parser.parse_args(arguments)
    options.max_size = options.max_size or read_size("256M" if options.gpu else "16M")
    options.slow = options.slow or (1.5 if options.gpu else 3.0)
    if options.max_size < SMALLEST or options.slow <= 1 or options.timeout <= 0:
        parser.error(f"--max-size must be {SMALLEST} or more, --slow more than 1, --timeout more than 0")
    return options


if __name__ == "__main__":
    main(parse_options())
