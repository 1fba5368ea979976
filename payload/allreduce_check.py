# SPDX-License-Identifier: BSD-3-Clause
"""Check the network between all ranks with all-reduces: sums, bandwidth, the network.

    srun -N2 --ntasks-per-node=2 conda-python-distributed -u $PAYLOAD/allreduce_check.py [--gpu] [--groups]

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
import time
from collections.abc import Callable, MutableMapping, Sequence
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from training import TrainingError
from training.distributed import World, process_group
from training.failing import fail_in_one_line
from training.options import OneLineParser, integer, number
from training.progress import reporter

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
PERIOD = 13  # of the numbers in a message, which makes exchanged pieces visible
ITERATIONS = 20
EXCHANGED = 2**20  # bytes of the messages in groups


class Threshold(NamedTuple):
    """The minimum bus bandwidth in GB/s for ``size`` bytes; ``shape``: such as 2x8, "" for any."""

    busbw: float
    size: int
    shape: str


def gather(value, world: World) -> list:
    """Return the values of all ranks, in their order, on every rank: by TCP between CPUs, also with NCCL."""
    values = [None] * world.size
    dist.all_gather_object(values, value, group=world.host_group)
    return values


def faulty_ranks(is_right: bool, world: World) -> str:
    """Return the ranks that call this with False, with their nodes; "" if there are none."""
    answers = gather((is_right, platform.node()), world)
    return ", ".join(f"{rank} ({node})" for rank, (right, node) in enumerate(answers) if not right)


def log_nccl(environment: MutableMapping[str, str]) -> Callable[[], str]:
    """Make NCCL write its log to memory, so that no file remains; return a function that reads it.

    NCCL reads these variables at its first collective; values that the user exported are replaced.
    """
    log = os.memfd_create("nccl.log")
    environment.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=f"/proc/self/fd/{log}")
    return lambda: os.pread(log, 2**24, 0).decode(errors="replace")


def read_nccl_log(text: str, expected: str) -> tuple[str, bool]:
    """Return which network NCCL uses, and whether it is the ``expected`` one and no connection uses TCP.

    Reads the lines that NCCL and RCCL write with NCCL_DEBUG=INFO and the subsystems INIT and NET. Sources:
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/logging.html, and for libfabric
    https://github.com/aws/aws-ofi-nccl, whose versions differ in a capital letter. The last network is the one in use,
    and NCCL may fall back to sockets after it chose a provider. Names of NCCL's plugins for InfiniBand begin with the
    name of its own: IB, IBext_v8.
    """
    networks = re.findall(r"NCCL INFO Using network (.+?)\s*$", text, re.MULTILINE)[-1:]
    networks += re.findall(r"NET/OFI Selected provider is ([\w;]+)", text, re.IGNORECASE)[-1:]
    channels = sorted(set(re.findall(r"Channel .* via NET/([^/\n]+)/", text)))
    is_fast = any(network.lower().startswith(expected.lower()) for network in networks)
    return " ".join(networks + channels), is_fast and "Socket" not in networks + channels


def size_in_bytes(text: str) -> int:
    """Convert ``4``, ``64K``, ``128MiB`` to bytes; K, M, G are powers of 1024. Raises ValueError."""
    match = re.fullmatch(r"([1-9]\d{0,11})([KMG]?)(?:i?B)?", text)
    if not match:
        raise ValueError(text)
    return int(match[1]) * UNITS[match[2]]


def show_size(size: int) -> str:
    """Convert bytes to ``4 B`` or ``128 MiB``."""
    for unit in "GMK":
        if size % UNITS[unit] == 0:
            return f"{size // UNITS[unit]} {unit}iB"
    return f"{size} B"


def thresholds(text: str) -> list[Threshold]:
    """Read ``80.75@128MiB@2x8 10@1M``; a threshold without its last part applies to any shape. Raises ValueError."""
    words = [word.split("@") for word in text.split()]
    return [Threshold(float(busbw), size_in_bytes(size), "".join(shape)) for busbw, size, *shape in words]


def sum_of(ranks: Sequence[int], size: int, device: torch.device) -> torch.Tensor:
    """Return the exact sum of what ``ranks`` contribute to a message of ``size`` bytes: float32 [size // 4]."""
    places = torch.arange(size // 4, device=device) % PERIOD
    return (places * len(ranks) + sum(ranks)).float()


def measure(world: World, size: int) -> tuple[float, bool]:
    """Return the seconds of an all-reduce of ``size`` bytes, of the slowest rank, and whether the sum here is right."""
    message = torch.zeros(size // 4, device=world.device)
    dist.all_reduce(message)  # connects the ranks
    gather(message.sum().item(), world)  # waits for the device, and for all ranks
    start = time.perf_counter()
    for _ in range(ITERATIONS):
        dist.all_reduce(message)
    message.sum().item()
    seconds = max(gather((time.perf_counter() - start) / ITERATIONS, world))
    message += sum_of([world.rank], size, world.device)
    dist.all_reduce(message)
    return seconds, torch.equal(message, sum_of(range(world.size), size, world.device))


def check_sums(
    options: argparse.Namespace, world: World, report: Callable[[str], None]
) -> tuple[str, dict[int, float]]:
    """Report a table of all sizes; return the verdict on the sums, and the bus bandwidths in GB/s by size."""
    report(f"{'size':>10}{'time us':>12}{'algorithm GB/s':>17}{'bus GB/s':>12}  verdict")
    bandwidths = {}
    fault = ""
    size = 4
    while size <= options.max_size:
        seconds, is_right = measure(world, size)
        algorithm = size / seconds / 1e9
        bandwidths[size] = algorithm * (2 * (world.size - 1) / world.size or 1)
        row = f"{show_size(size):>10}{seconds * 1e6:>12.1f}{algorithm:>17.3f}{bandwidths[size]:>12.3f}"
        wrong = faulty_ranks(is_right, world)
        if wrong and not fault:
            fault = f"FAIL sums: wrong from {show_size(size)} on ranks {wrong}. Check parts of these nodes"
        report(f"{row}  {'WRONG' if wrong else 'right'}")
        size *= 2
    return fault or f"sums: right in all {len(bandwidths)} sizes on all ranks", bandwidths


def check_bandwidth(bandwidths: dict[int, float], least: Sequence[Threshold], shape: str) -> str:
    """Return the verdict on the bus bandwidths, by the thresholds ``least`` for ``shape``: nodes and ranks on each."""
    applicable = [each for each in least if each.shape in ("", shape) and each.size in bandwidths]
    for busbw, size, _ in applicable:
        if bandwidths[size] < busbw:
            found = f"{bandwidths[size]:.2f} GB/s at {show_size(size)}"
            return f"FAIL bandwidth: {found}, expected {busbw:g} GB/s. Look at the network, then try other nodes"
    return f"bandwidth: {len(applicable)} thresholds for these sizes and {shape} ranks, all reached"


def check_network(world: World, nodes: int, log: str, expected: str) -> str:
    """Return the verdict on the network that NCCL uses, from this rank's ``log``. Every rank calls it."""
    found, is_fast = read_nccl_log(log, expected)
    slow = faulty_ranks(is_fast, world)
    if world.device.type != "cuda" or nodes == 1:
        return "network: not between GPUs of several nodes; not checked"
    if slow:
        return f"FAIL network: not {expected} (PYTORCH_FAST_NETWORK) on ranks {slow}; here {found}. Run pytorch-doctor"
    return f"network: {found} (PYTORCH_FAST_NETWORK: {expected or 'not set, not checked'})"


def check_groups(world: World, length: int, timeout: timedelta) -> str:
    """Return the verdict on collectives in rows of ``length`` consecutive ranks, then in the columns across them.

    Such groups has a mesh of FSDP x TP. In each of them the ranks add their numbers.
    """
    rows = torch.arange(world.size).view(-1, length)
    is_right = True
    for groups in (rows.tolist(), rows.T.tolist()):
        group, _ = dist.new_subgroups_by_enumeration(groups, timeout)
        members = dist.get_process_group_ranks(group)
        message = sum_of([world.rank], EXCHANGED, world.device)
        dist.all_reduce(message, group=group)
        is_right &= torch.equal(message, sum_of(members, EXCHANGED, world.device))
    wrong = faulty_ranks(is_right, world)
    if wrong:
        return f"FAIL groups: wrong result on ranks {wrong}. Test memory, GPU and network card there"
    return f"groups: {len(rows)} rows of {length} ranks, {length} columns of {len(rows)}: right"


def check(options: argparse.Namespace, world: World, read_log: Callable[[], str]) -> bool:
    """Run all checks; return on every rank whether all passed. Only rank 0 prints."""
    report = reporter(world)
    nodes = len(set(gather(platform.node(), world)))
    report(f"all-reduce check: ranks {world.size}, nodes {nodes}, backend {dist.get_backend()}, device {world.device}")
    sums, bandwidths = check_sums(options, world, report)
    shape = f"{nodes}x{world.size / nodes:g}"
    lines = [
        sums,
        check_bandwidth(bandwidths, options.threshold, shape),
        check_network(world, nodes, read_log(), os.environ.get("PYTORCH_FAST_NETWORK", "")),
    ]
    if options.groups:
        lines.append(check_groups(world, options.groups, timedelta(seconds=options.timeout)))
    passed = not any(line.startswith("FAIL") for line in lines)
    report("\n".join([*lines, f"all-reduce check: {'ok' if passed else 'FAIL'}"]))
    gather(None, world)  # the first rank that exits with an error may end the step: rank 0 prints before
    return passed


def main(options: argparse.Namespace) -> None:
    """Check; exit with status 1 if a check fails, and with a last line that names the rank if this rank fails."""
    read_log = log_nccl(os.environ)
    with fail_in_one_line():
        with process_group(os.environ, use_gpu=options.gpu, timeout=options.timeout) as world:
            if options.groups and world.size % options.groups:
                raise TrainingError(f"--groups {options.groups}: {world.size} ranks are not a multiple. Use a divisor")
            passed = check(options, world, read_log)
        sys.exit(not passed)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options; the thresholds of the profile are the default."""
    parser = OneLineParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--gpu", action="store_true", help="use NCCL between GPUs (default: gloo between CPUs)")
    add(
        "--groups",
        type=integer(1),
        nargs="?",
        const=2,
        metavar="N",
        help="also test collectives in groups: rows of N consecutive ranks (default: 2), and the columns across them",
    )
    add("--max-size", type=size_in_bytes, metavar="SIZE", help="largest message (default: 256M with --gpu, else 16M)")
    add(
        "--threshold",
        type=thresholds,
        metavar="GB/S@SIZE",
        default=os.environ.get("PYTORCH_ALLREDUCE_BUSBW", ""),
        help="minimum bus bandwidth, such as 20@64M (default: $PYTORCH_ALLREDUCE_BUSBW)",
    )
    add("--timeout", type=number(), default=120, metavar="S", help="to wait for other ranks (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.max_size is None:
        options.max_size = 2**28 if options.gpu else 2**24
    return options


if __name__ == "__main__":
    main(parse_options())
