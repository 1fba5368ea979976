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
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from training import TrainingError, allreduce
from training.allreduce import SMALLEST, Ranks, Threshold, read_size, show_size
from training.distributed import fail_together, process_group
from training.failing import fail_in_one_line
from training.options import OneLineParser, integer, number

STEP = 4  # factor from one message size to the next
PERIOD = 13  # of the numbers in a message, which makes exchanged pieces visible
EXCHANGED = 2**20  # bytes of the messages in groups


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
    thresholds = allreduce.applicable_thresholds(ranks, options.threshold)
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
            allreduce.check_sums(ranks, wrong),
            allreduce.check_bandwidth(ranks, thresholds, bandwidths),
            allreduce.check_network(ranks, ranks.read_log(), os.environ.get("PYTORCH_FAST_NETWORK", "")),
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
    read_log = allreduce.log_nccl(os.environ)
    with fail_in_one_line(lambda: allreduce.last_warning(read_log())):
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
    add("--threshold", type=allreduce.read_thresholds, metavar="GB/S@SIZE", default=given, help=least)
    add("--timeout", type=number(), metavar="S", help="seconds to wait for other ranks (default: 120)")
    options = parser.parse_args(arguments)
    largest = ("64M", "1M") if options.quick else ("256M", "16M")
    options.max_size = options.max_size or read_size(largest[0] if options.gpu else largest[1])
    options.timeout = options.timeout or (15 if options.quick else 120)
    return options


if __name__ == "__main__":
    main(parse_options())
