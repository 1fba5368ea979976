# SPDX-License-Identifier: BSD-3-Clause
"""Check the network between all ranks with all-reduces: sums, bandwidth, slow ranks, the network in use.

    srun -N2 --ntasks-per-node=2 conda-python-distributed -u $PAYLOAD/allreduce_check.py [--quick] [--gpu]

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
import sys
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from training.allreduce.measuring import SMALLEST, sums_right, time_all_reduce
from training.allreduce.nccl_log import last_warning, log_nccl, read_nccl_log
from training.allreduce.ranks import Answers, Ranks, end_with_names
from training.allreduce.verdicts import (
    Threshold,
    applicable_thresholds,
    bus_factor,
    check_bandwidth,
    check_network,
    check_speed,
    check_sums,
    message_sizes,
    read_size,
    read_thresholds,
    show_size,
)
from training.distributed import World, process_group
from training.failing import fail_in_one_line
from training.options import OneLineParser, number


def measure(ranks: Ranks, size: int) -> tuple[float, list[int]]:
    """Return the seconds of one all-reduce of ``size`` bytes on the slowest rank, and the ranks with wrong sums."""
    right = sums_right(ranks, size)
    seconds, zeros = time_all_reduce(ranks, size)
    right = sums_right(ranks, size) and right and zeros
    results = ranks.gather((seconds, right))
    return max(seconds for seconds, _ in results), [rank for rank, (_, right) in enumerate(results) if not right]


def measure_all(
    ranks: Ranks, sizes: Sequence[int], thresholds: Sequence[Threshold], report: Callable[[str], None]
) -> tuple[dict[int, float], dict[int, list[int]]]:
    """Print the table; return the bus bandwidths in GB/s, and the ranks with wrong sums, by message size."""
    report(f"{'size':>10}{'time us':>12}{'algorithm GB/s':>17}{'bus GB/s':>12}  verdict")
    bandwidths, wrong = {}, {}
    for size in sizes:
        seconds, wrong_here = measure(ranks, size)
        algorithm = size / seconds / 1e9
        bandwidths[size] = bus = algorithm * bus_factor(ranks.size)
        least = [threshold.busbw for threshold in thresholds if threshold.size == size]
        verdict = "right" + (f", {'reaches' if bus >= max(least) else 'BELOW'} {max(least):g} GB/s" if least else "")
        if wrong_here:
            wrong[size], verdict = wrong_here, "WRONG"
        report(f"{show_size(size):>10}{seconds * 1e6:>12.1f}{algorithm:>17.3f}{bus:>12.3f}  {verdict}")
    return bandwidths, wrong


def check(options: argparse.Namespace, world: World, read_log: Callable[[], str]) -> bool:
    """Run all checks; return on every rank whether all passed. Only rank 0 prints."""
    ranks = Ranks(world, options.timeout, read_log)
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
        bandwidths, wrong = measure_all(ranks, sizes, thresholds, report)
        network = read_nccl_log(read_log()) if ranks.device.type == "cuda" else None
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
    ranks.gather(None)  # the first rank that exits with an error may end the step: rank 0 prints before
    return not failed


def main(options: argparse.Namespace) -> None:
    """Check; exit with status 1 if a check fails, and with a last line that names the rank if this rank fails."""
    read_log = log_nccl(os.environ)
    with fail_in_one_line(lambda: last_warning(read_log())):
        with process_group(os.environ, use_gpu=options.gpu, timeout=options.timeout) as world:
            answers = Answers(world.rank, world.size)
            try:
                passed = check(options, world, read_log)
            except RuntimeError as error:
                end_with_names(answers, world, options.timeout, error)
                raise
        sys.exit(0 if passed else 1)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options; the thresholds of the profile are the default."""
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--gpu", action="store_true", help="use NCCL or XCCL between GPUs (default: gloo between CPUs)")
    add(
        "--quick",
        action="store_true",
        help="a check of seconds before a training: defaults of --max-size 64M with --gpu, else 1M, of --timeout 15, "
        "and of --slow 10 between CPUs",
    )
    add("--max-size", type=read_size, metavar="SIZE", help="largest message (default: 256M with --gpu, else 16M)")
    add(
        "--threshold",
        type=read_thresholds,
        metavar="GB/S@SIZE",
        default=os.environ.get("PYTORCH_ALLREDUCE_BUSBW", ""),
        help="minimum bus bandwidth, such as 20@64M (default: $PYTORCH_ALLREDUCE_BUSBW)",
    )
    add(
        "--slow",
        type=number(1),
        metavar="FACTOR",
        help="ranks that take FACTOR times the median are slow (default: 1.5 with --gpu, else 3, because CPUs may be "
        "shared)",
    )
    add("--timeout", type=number(), metavar="S", help="seconds to wait for other ranks (default: 120)")
    options = parser.parse_args(arguments)
    largest = ("64M", "1M") if options.quick else ("256M", "16M")
    options.max_size = options.max_size or read_size(largest[0] if options.gpu else largest[1])
    options.slow = options.slow or (1.5 if options.gpu else 10 if options.quick else 3)  # CPUs may be shared
    if options.timeout is None:
        options.timeout = 15 if options.quick else 120
    if options.max_size < SMALLEST:
        parser.error(f"--max-size must be at least {SMALLEST}")
    return options


if __name__ == "__main__":
    main(parse_options())
