# SPDX-License-Identifier: BSD-3-Clause
"""Check the network between all ranks with all-reduces: sums, bandwidth, the network.

    srun -N2 --ntasks-per-node=2 conda-python-distributed -u $PAYLOAD/allreduce_check.py [--quick] [--gpu] [--groups]

Rank 0 prints a table by message size, then one line per check. A line that begins with FAIL names the ranks at
fault, and the exit status is 1.

Bandwidths are defined as in nccl-tests (https://github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): the algorithm
bandwidth is size over time; the bus bandwidth is that times 2 (n - 1) / n for n ranks, and can be compared with the
hardware's for any n. 1 GB is 10^9 bytes.

The cluster profile sets what is expected:

PYTORCH_ALLREDUCE_BUSBW   minimum bus bandwidths `<GB/s>@<size>@<nodes>x<ranks per node>`, separated by spaces
PYTORCH_FAST_NETWORK      NCCL's name for the network between nodes: `IB`, `cxi`
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import threading
import time
import traceback
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from training import TrainingError
from training.accelerator import BACKENDS, module_of
from training.distributed import World, fail_together, process_group
from training.failing import fail_in_one_line
from training.options import OneLineParser, integer, number

SMALLEST = 4  # bytes of a message: one float32
LARGEST = 2**36  # no device has room for the copies of more
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
PATIENCE = 0.9  # of the time limit, after which torch ends this process without naming the rank
MOST_NAMES = 8  # ranks in one line
WATCH_SECONDS = 0.5  # between two checks of a call that may not return
ANSWER_SECONDS = 10  # for a rank to answer after a collective failed; all waiting ranks fail at about the same time
STAY_SECONDS = 2  # rank 0, whose process may host the store, stays so much longer, for ranks that ask later
CLOSE_SECONDS = 5  # limit for closing connections
POLL_SECONDS = 0.1  # between two polls for answers
STEP = 4  # factor from one message size to the next
PERIOD = 13  # of the numbers in a message, which makes exchanged pieces visible
EXCHANGED = 2**20  # bytes of the messages in groups


class Ranks:
    """The ranks of this run; create it once on each, inside the process group.

    ``gather`` uses TCP between CPUs: with NCCL, the results do not depend on the network under test. A collective that
    fails does so on all waiting ranks at about the same time: when the time limit of its group expires, or when the
    ranks that failed before have closed their connections. They answer in the store; a rank that hangs or has ended
    does not. ``add`` counts there, as it never blocks. ``task`` names the operation in a group that this rank is in.
    """

    def __init__(self, world: World, timeout: float, read_log: Callable[[], str] = str):
        self.rank, self.size, self.device, self.host_group = world
        self.timeout, self.read_log = timeout, read_log
        self.calling_since: float | None = None
        self.task = ""
        self.store = dist.PrefixStore("answers", dist.distributed_c10d._get_default_store())
        self.hosts = ["host unknown"] * self.size
        self.nodes: list[str] = []

    def gather(self, value):
        """Return the values of all ranks, in their order, on every rank; it waits for all of them."""
        values = [None] * self.size
        self.calling_since = None  # these connections have a time limit of their own
        dist.all_gather_object(values, value, group=self.host_group)
        self.calling_since = time.monotonic()
        return values

    def name(self, ranks: Sequence[int]) -> str:
        """Return the names of ranks with their hosts, for a message; of many, the first few."""
        names = ", ".join(f"{rank} ({self.hosts[rank]})" for rank in ranks[:MOST_NAMES])
        more = f" and {len(ranks) - MOST_NAMES} more" if len(ranks) > MOST_NAMES else ""
        return f"rank{'s' * (len(ranks) > 1)} {names}{more}"

    def wait_for_device(self) -> None:
        """Wait until the device has finished its work; ``watch_calls`` ends this process if it never does."""
        if self.device.type != "cpu":
            self.calling_since = time.monotonic()
            module_of(self.device).synchronize()
            self.calling_since = time.monotonic()

    @contextmanager
    def watch_calls(self) -> Iterator[None]:
        """End this process if a call of NCCL or XCCL does not return, or if its work on the device does not end.

        The first collective of a group connects its ranks within the call, to which no time limit of torch applies.
        """
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(WATCH_SECONDS):
                since, limit = self.calling_since, PATIENCE * self.timeout
                if since is not None and time.monotonic() - since > limit:
                    who = f"groups: {self.task}" if self.task else self.name([self.rank])
                    self.exit(
                        f"FAIL {who}: a collective of {BACKENDS[self.device.type].upper()} did not end "
                        f"within {limit:g} s{last_warning(self.read_log())}. "
                        "Try without the nodes of ranks that do not report this"
                    )

        if self.device.type != "cpu":
            threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def exit(self, line: str) -> None:
        """End this process at once: an orderly exit would wait for the device, or for a rank that hangs."""
        print(line, file=sys.stderr, flush=True)
        self.stay()
        os._exit(1)

    def stay(self) -> None:
        """Keep the store, if this process has it, for ranks that ask later."""
        if self.rank == 0:
            time.sleep(ANSWER_SECONDS + STAY_SECONDS)

    def missing(self, seconds: float) -> list[int] | None:
        """Return the ranks that do not answer within ``seconds``; None if the store does not answer.

        If the process of the store ends meanwhile, these are the ranks that had not answered by then.
        """
        absent: list[int] | None = None

        def call() -> None:
            nonlocal absent
            deadline = time.monotonic() + seconds
            with suppress(RuntimeError):
                self.store.add(f"here {self.rank}", 1)
                while True:
                    absent = [rank for rank in range(self.size) if not self.store.add(f"here {rank}", 0)]
                    if not absent or time.monotonic() >= deadline:
                        break
                    time.sleep(POLL_SECONDS)

        # The process that hangs may be that of the store: rank 0 or torchrun.
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(seconds + 5)
        return absent

    def end_with_names(self, error: Exception) -> None:
        """End this process with a line that names the ranks that do not answer; return if all of them answer.

        The connections between CPUs are closed before, so that ranks that wait for this one also fail, and answer.
        NCCL's group stays open: closing it would wait for the other ranks.
        """
        traceback.clear_frames(error.__traceback__)  # the frames keep groups of some ranks alive
        close = threading.Thread(target=dist.destroy_process_group, args=(self.host_group,), daemon=True)
        close.start()
        close.join(CLOSE_SECONDS)
        missing = self.missing(ANSWER_SECONDS)
        reason = str(error).splitlines()[0]
        end = f"did not end within {self.timeout:g} s" if re.search("timed? ?out", reason, re.IGNORECASE) else "failed"
        if missing == [] and not self.task:
            return self.stay()
        what = f"groups: {self.task}:" if self.task else "a collective"
        names = self.name(missing) if missing else "rank 0, or the process that holds its store"
        answer = "all ranks answer" if missing == [] else f"no answer from {names}"
        return self.exit(
            f"FAIL {what} {end}: {answer} ({reason}). Look at processes and logs there, or try other nodes"
        )


def log_nccl(environment: MutableMapping[str, str]) -> Callable[[], str]:
    """Make NCCL write its log to memory, so that no file remains; return a function that reads it.

    NCCL reads these variables at its first collective; values that the user exported are replaced.
    """
    log = os.memfd_create("nccl.log")
    environment.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=f"/proc/self/fd/{log}")
    return lambda: os.pread(log, os.fstat(log).st_size, 0).decode(errors="replace")


def read_nccl_log(text: str, expected: str) -> tuple[str, bool]:
    """Return which network NCCL uses, and whether it is the ``expected`` one and no connection uses TCP.

    Reads the lines that NCCL and RCCL write with NCCL_DEBUG=INFO and the subsystems INIT and NET. Sources:
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/logging.html, and for libfabric
    https://github.com/aws/aws-ofi-nccl, whose versions differ in a capital letter. The last network is the one in use,
    and NCCL may fall back to sockets after it chose a provider. Names of NCCL's plugins for InfiniBand begin with the
    name of its own: IB, IBext_v8.
    """
    name = re.findall(r"NCCL INFO Using network (.+?)\s*$", text, re.MULTILINE)[-1:]
    provider = re.findall(r"NET/OFI Selected provider is ([\w;]+)", text, re.IGNORECASE)[-1:]
    channels = sorted(set(re.findall(r"Channel .* via NET/([^/\n]+)/", text)))
    is_fast = any(each.lower().startswith(expected.lower()) for each in name + provider)
    described = "".join(name) or "unknown"
    described += "".join(f", provider {each}" for each in provider)
    described += f", channels over {' and '.join(channels)}" if channels else ""
    return described, is_fast and "Socket" not in name + channels


def last_warning(log: str) -> str:
    """Return the last warning in NCCL's log as a part of a message, "" if there is none."""
    warnings = re.findall(r"NCCL WARN (.+?)\s*$", log, re.MULTILINE)
    return f" (NCCL warning: {warnings[-1]})" if warnings else ""


class Threshold(NamedTuple):
    """The minimum bus bandwidth in GB/s for ``size`` bytes; ``shape``: such as 2x8, None for any."""

    busbw: float
    size: int
    shape: str | None


def read_size(text: str) -> int:
    """Convert ``4``, ``64K``, ``128MiB`` to bytes; K, M, G are powers of 1024. Raises ArgumentTypeError."""
    match = re.fullmatch(r"(\d+)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = int(match[1][:20]) * UNITS[match[2].upper()] if match else 0
    if not SMALLEST <= size <= LARGEST:
        raise ArgumentTypeError(f"{text[:40]!r} is not a size from {SMALLEST} to {LARGEST >> 30}G, such as 64K or 1MiB")
    return size


def show_size(size: int) -> str:
    """Convert bytes to ``4 B`` or ``128 MiB``."""
    unit = next((unit for unit in "GMK" if size % UNITS[unit] == 0), "")
    return f"{size // UNITS[unit]} {unit and unit + 'i'}B"


def read_thresholds(text: str) -> list[Threshold]:
    """Read ``80.75@128MiB@2x8 10@1M``; a threshold without its last part applies to any shape."""
    thresholds = []
    for word in text.split():
        try:
            busbw, size, *shape = word.split("@")
            if not (0 < float(busbw) <= 1e9 and re.fullmatch(r"(\d+x\d+)?", "@".join(shape))):
                raise ValueError(word)
            thresholds.append(Threshold(float(busbw), read_size(size), "".join(shape) or None))
        except (ValueError, ArgumentTypeError):
            raise ArgumentTypeError(
                f"{word[:40]!r} is not a threshold: <GB/s>@<size>[@<nodes>x<ranks per node>], such as 80.75@128MiB@2x8"
            ) from None
    return thresholds


def applicable_thresholds(ranks: Ranks, thresholds: Sequence[Threshold]) -> list[Threshold]:
    """Return the thresholds for this number of nodes and ranks; none for one rank, which sends nothing."""
    counts = {ranks.hosts.count(node) for node in ranks.nodes}
    shapes = (None, f"{len(ranks.nodes)}x{counts.pop()}" if len(counts) == 1 else None)
    return [threshold for threshold in thresholds if ranks.size > 1 and threshold.shape in shapes]


def check_sums(ranks: Ranks, wrong: Mapping[int, list[int]]) -> str:
    """Return the verdict on the sums, from the ranks that received wrong ones, by message size."""
    size = next((size for size in wrong if wrong[size]), None)
    if size is None:
        return f"sums: right in all {len(wrong)} sizes on all ranks"
    return (
        f"FAIL sums: wrong from {show_size(size)} on {ranks.name(wrong[size])}. Repeat the check on parts of these "
        "nodes, exclude the node that is in each wrong part, and test its memory, GPU and network card"
    )


def check_bandwidth(ranks: Ranks, thresholds: Sequence[Threshold], measured: Mapping[int, float]) -> str:
    """Return the verdict on the bus bandwidths, in GB/s by message size, with the ``thresholds`` that apply."""
    reached = []
    for busbw, size, _ in thresholds:
        if size in measured:
            reached.append(f"{busbw:g} GB/s at {show_size(size)}")
            if measured[size] < busbw:
                return (
                    f"FAIL bandwidth: {measured[size]:.2f} GB/s at {show_size(size)}, expected {busbw:g} GB/s. "
                    "Look at the verdict on the network, then try other nodes"
                )
    if reached:
        return f"bandwidth: at least {', '.join(reached)}, as expected"
    return (
        f"bandwidth: no threshold for {ranks.size} ranks on {len(ranks.nodes)} nodes and these sizes; not checked. "
        "Set --threshold, or a larger --max-size"
    )


def check_network(ranks: Ranks, log: str, expected: str) -> str:
    """Return the verdict on the network that NCCL uses, from this rank's ``log``. Every rank calls it."""
    networks = ranks.gather((*read_nccl_log(log, expected), last_warning(log)))
    if ranks.device.type != "cuda":
        return f"network: {BACKENDS.get(ranks.device.type, 'gloo')} does not report it; not checked"
    if len(ranks.nodes) == 1:
        return "network: not needed on one node; not checked"
    if not expected:
        return f"network: {networks[0][0]}; PYTORCH_FAST_NETWORK is not set; not checked"
    slow = [rank for rank, (_, is_fast, _) in enumerate(networks) if not is_fast]
    if not slow:
        return f"network: {networks[0][0]}: the fast one, as PYTORCH_FAST_NETWORK={expected} requires"
    found, _, warning = networks[slow[0]]
    return (
        f"FAIL network: {ranks.name(slow)} uses {found}, not {expected} as PYTORCH_FAST_NETWORK requires{warning}. "
        "Check the plugin and the cards with pytorch-doctor, and the binds of the container"
    )


def message_sizes(largest: int, thresholds: Sequence[Threshold]) -> list[int]:
    """Return the sizes in bytes, ascending: 4 B times powers of 4, and those of the thresholds, up to ``largest``."""
    sizes = {SMALLEST * STEP**power for power in range(40)} | {threshold.size for threshold in thresholds}
    return sorted(size for size in sizes if SMALLEST <= size <= largest)


def sum_of(ranks: Sequence[int], size: int, device: torch.device) -> torch.Tensor:
    """Return the exact sum of what ``ranks`` contribute to a message of ``size`` bytes: float32 [size // 4]."""
    count = size // SMALLEST
    numbers = [sum((7 * place + 3 * rank) % PERIOD for rank in ranks) for place in range(PERIOD)]
    return torch.tensor(numbers, dtype=torch.float32, device=device).repeat(-(-count // PERIOD))[:count]


def sums_right(ranks: Ranks, size: int) -> bool:
    """Add up the contributions of all ranks; return whether the sums on this rank are right."""
    message = sum_of([ranks.rank], size, ranks.device)
    dist.all_reduce(message)
    ranks.wait_for_device()
    return torch.equal(message, sum_of(range(ranks.size), size, ranks.device))


def measure(ranks: Ranks, size: int) -> tuple[float, list[int]]:
    """Return the seconds of one all-reduce of ``size`` bytes on the slowest rank, and the ranks with wrong sums."""
    right = sums_right(ranks, size)
    message = torch.zeros(size // SMALLEST, device=ranks.device)
    iterations = 20 if ranks.device.type != "cpu" else min(20, max(3, 2**25 // size))
    for count in (2, iterations):
        ranks.wait_for_device()
        ranks.gather(None)
        start = time.perf_counter()
        for _ in range(count):
            dist.all_reduce(message)
    ranks.wait_for_device()
    seconds = (time.perf_counter() - start) / iterations
    right = not message.any() and sums_right(ranks, size) and right
    results = ranks.gather((seconds, right))
    return max(seconds for seconds, _ in results), [rank for rank, (_, right) in enumerate(results) if not right]


def measure_all(
    ranks: Ranks, sizes: Sequence[int], report: Callable[[str], None]
) -> tuple[dict[int, float], dict[int, list[int]]]:
    """Print the table; return the bus bandwidths in GB/s, and the ranks with wrong sums, by message size."""
    report(f"{'size':>10}{'time us':>12}{'algorithm GB/s':>17}{'bus GB/s':>12}  verdict")
    bandwidths, wrong = {}, {}
    for size in sizes:
        seconds, wrong[size] = measure(ranks, size)
        algorithm = size / seconds / 1e9
        bandwidths[size] = bus = algorithm * 2 * (ranks.size - 1) / ranks.size
        verdict = "WRONG" if wrong[size] else "right"
        report(f"{show_size(size):>10}{seconds * 1e6:>12.1f}{algorithm:>17.3f}{bus:>12.3f}  {verdict}")
    return bandwidths, wrong


def check_groups(ranks: Ranks, length: int) -> str:
    """Return the verdict on collectives in rows of ``length`` consecutive ranks, then in the columns across them.

    Such groups has a mesh of FSDP x TP. In each of them the ranks add, gather, and add and divide their numbers.
    """
    rows = [list(range(first, first + length)) for first in range(0, ranks.size, length)]
    wrong: dict[str, None] = {}
    for kind, groups in (("row", rows), ("column", [list(column) for column in zip(*rows)])):
        place, members = next((place, members) for place, members in enumerate(groups) if ranks.rank in members)
        name = f"{kind} {place} ({ranks.name(members)})"
        ranks.task = f"new_group of {name}"  # only its members call it, so that all groups of a kind are made at once
        group = dist.new_group(members, timedelta(seconds=ranks.timeout), use_local_synchronization=True)
        parts = [sum_of([rank], EXCHANGED, ranks.device) for rank in members]
        own, whole = parts[members.index(ranks.rank)], sum_of(members, EXCHANGED, ranks.device)
        added, gathered, divided = own.clone(), list(map(torch.zeros_like, parts)), torch.zeros_like(own)
        for operation, arguments, found, expected in (
            (dist.all_reduce, (added,), [added], [whole]),
            (dist.all_gather, (gathered, own), gathered, parts),
            (dist.reduce_scatter, (divided, [own] * len(members)), [divided], [whole]),
        ):
            ranks.task = f"{operation.__name__} in {name}"
            operation(*arguments, group=group)
            ranks.wait_for_device()
            task, right = ranks.task, all(map(torch.equal, found, expected))
            ranks.task = ""
            wrong.update(dict.fromkeys(filter(None, ranks.gather("" if right else task))))
    if wrong:
        return f"FAIL groups: wrong result of {', '.join(wrong)}. Test memory, GPU and network card there"
    return f"groups: {len(rows)} rows of {length} ranks, {length} columns of {len(rows)}: right, and in time"


def check(options: argparse.Namespace, ranks: Ranks) -> bool:
    """Run all checks; return on every rank whether all passed. Only rank 0 prints."""
    ranks.hosts = ranks.gather(platform.node())
    ranks.nodes = list(dict.fromkeys(ranks.hosts))
    thresholds = applicable_thresholds(ranks, options.threshold)
    sizes = message_sizes(options.max_size, thresholds)

    def report(line: str) -> None:
        if ranks.rank == 0:
            print(line, flush=True)

    report(
        f"all-reduce check: ranks {ranks.size}, nodes {len(ranks.nodes)}, backend {dist.get_backend()}, "
        f"device {ranks.device}, torch {torch.__version__}"
    )
    with ranks.watch_calls():
        bandwidths, wrong = measure_all(ranks, sizes, report)
        lines = [
            check_sums(ranks, wrong),
            check_bandwidth(ranks, thresholds, bandwidths),
            check_network(ranks, ranks.read_log(), os.environ.get("PYTORCH_FAST_NETWORK", "")),
        ]
        for line in lines:
            report(line)
        if options.groups:
            lines.append(check_groups(ranks, options.groups))
            report(lines[-1])
    failed = [line.split(":")[0][len("FAIL ") :] for line in lines if line.startswith("FAIL")]
    report(f"all-reduce check: {'FAIL: ' + ', '.join(failed) if failed else 'ok'}")
    ranks.gather(None)  # the first rank that exits with an error may end the step: rank 0 prints before
    return not failed


def main(options: argparse.Namespace) -> None:
    """Check; exit with status 1 if a check fails, and with a last line that names the rank if this rank fails."""
    read_log = log_nccl(os.environ)
    with fail_in_one_line(lambda: last_warning(read_log())):
        with process_group(os.environ, use_gpu=options.gpu, timeout=options.timeout) as world:
            with fail_together(world):
                if options.groups and world.size % options.groups:
                    raise TrainingError(
                        f"--groups {options.groups}: {world.size} ranks are not a multiple. Use a divisor of the ranks"
                    )
            ranks = Ranks(world, options.timeout, read_log)
            try:
                passed = check(options, ranks)
            except RuntimeError as error:
                ranks.end_with_names(error)
                raise
        sys.exit(0 if passed else 1)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options; the thresholds of the profile are the default."""
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--gpu", action="store_true", help="use NCCL or XCCL between GPUs (default: gloo between CPUs)")
    quick = "before a training, in seconds: --timeout 15, and --max-size 64M with --gpu, else 1M"
    add("--quick", action="store_true", help=quick)
    groups = "also test collectives in groups: rows of N consecutive ranks (default: 2), and the columns across them"
    add("--groups", type=integer(1), nargs="?", const=2, metavar="N", help=groups)
    add("--max-size", type=read_size, metavar="SIZE", help="largest message (default: 256M with --gpu, else 16M)")
    least = "minimum bus bandwidth, such as 20@64M (default: $PYTORCH_ALLREDUCE_BUSBW)"
    given = os.environ.get("PYTORCH_ALLREDUCE_BUSBW", "")
    add("--threshold", type=read_thresholds, metavar="GB/S@SIZE", default=given, help=least)
    add("--timeout", type=number(), metavar="S", help="seconds to wait for other ranks (default: 120)")
    options = parser.parse_args(arguments)
    largest = ("64M", "1M") if options.quick else ("256M", "16M")
    options.max_size = options.max_size or read_size(largest[0] if options.gpu else largest[1])
    options.timeout = options.timeout or (15 if options.quick else 120)
    return options


if __name__ == "__main__":
    main(parse_options())
