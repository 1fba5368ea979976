"""training/allreduce: NCCL's log, and the verdicts on the network, the bandwidth and slow ranks."""

from pathlib import Path

import pytest
import torch
from fake_ranks import (
    INFINIBAND,
    LIBFABRIC_OVER_TCP,
    NEWER_PLUGIN,
    NOT_FOUND,
    SLINGSHOT,
    SOCKETS,
    TWO_NODES,
    FakeRanks,
    log,
)
from training.allreduce import (
    Threshold,
    applicable_thresholds,
    check_bandwidth,
    check_network,
    check_speed,
    last_warning,
    log_nccl,
    read_nccl_log,
    read_thresholds,
)


@pytest.mark.parametrize(
    ("lines", "network", "fast_for"),
    [
        (SLINGSHOT, "AWS Libfabric, provider cxi, channels over AWS Libfabric", ["cxi"]),
        (NEWER_PLUGIN, "OFI, provider cxi", ["cxi"]),
        (LIBFABRIC_OVER_TCP, "AWS Libfabric, provider tcp", []),
        (INFINIBAND, "IB, channels over IB", ["IB"]),
        (INFINIBAND.replace("network IB", "network IBext_v8"), "IBext_v8, channels over IB", ["IB"]),
        (SOCKETS, "Socket, channels over Socket", []),
        (
            SLINGSHOT + SOCKETS.strip().splitlines()[-1],
            "AWS Libfabric, provider cxi, channels over AWS Libfabric and Socket",
            [],
        ),
        # a provider is chosen, and then the plugin fails
        (SLINGSHOT.splitlines()[2] + "\nUsing network Socket", "Socket, provider cxi", []),
        ("", "unknown", []),
    ],
)
def test_nccls_lines_tell_which_network_is_used(lines, network, fast_for):
    assert read_nccl_log(log(lines), "cxi")[0] == network
    assert [name for name in ("cxi", "IB") if read_nccl_log(log(lines), name)[1]] == fast_for


def test_nccls_log_is_kept_in_memory():
    environment = {}
    read = log_nccl(environment)
    with Path(environment["NCCL_DEBUG_FILE"]).open("w") as file:  # as NCCL does
        file.write("one\ntwo\n")
        file.flush()
        assert read() == "one\ntwo\n"


@pytest.mark.parametrize(
    ("thresholds", "measured", "line"),
    [
        ("", {4: 1}, "bandwidth: no threshold for 2x2 (nodes x ranks); not checked. Set one with --threshold"),
        ("9@1K@2x8", {1024: 1}, "bandwidth: no threshold for 2x2 (nodes x ranks); there is one for 2x8; "),
        ("9@1K", {1024: 9.5}, "bandwidth: at least 9 GB/s at 1 KiB, as expected"),
        ("9@1K@2x2", {1024: 8.5}, "FAIL bandwidth: 8.50 GB/s at 1 KiB, expected 9 GB/s. "),
        ("9@1M", {1024: 9.5}, "bandwidth: the threshold is for 1 MiB; not checked. Set --max-size"),
    ],
)
def test_the_bandwidth_is_compared_with_a_threshold_for_this_shape_alone(thresholds, measured, line):
    assert check_bandwidth(TWO_NODES, read_thresholds(thresholds), measured).startswith(line)


def test_one_rank_alone_has_no_bandwidth_to_check():
    one = FakeRanks(["n1"])
    assert applicable_thresholds(one, [Threshold(9, 4, None)]) == []
    assert check_bandwidth(one, [Threshold(9, 4, None)], {4: 0.0}).endswith("not checked")


@pytest.mark.parametrize(
    ("seconds", "line"),
    [
        ([1, 1, 9, 1, 1, 9, 1, 1, 9], "speed: no rank is slow: 1000.00 to 9000.00 ms alone"),
        ([1, 1, 9, 1, 1, 9, 1, 1, 1], "FAIL speed: ranks 2 (a), 5 (b): 9000.00, 9000.00 ms alone, "),
        ([1, 9, 9, 1, 1, 9, 1, 1, 9], "FAIL speed: rank 1 (a): 9000.00 ms alone, "),
    ],
)
def test_what_is_slow_on_every_node_is_how_the_nodes_are_built(seconds, line):
    ranks = FakeRanks([node for node in "abc" for _ in range(3)])
    assert check_speed(ranks, {"alone": seconds}, 2).startswith(line)


def network_of(hosts, logs, expected="cxi", device="cuda"):
    """The verdict of ranks with these logs."""
    found = [(*read_nccl_log(text, expected), last_warning(text)) for text in logs]
    ranks = FakeRanks(hosts, found)
    ranks.device = torch.device(device)
    return check_network(ranks, logs[0], expected)


def test_one_rank_on_sockets_fails_and_is_named():
    fast, slow = log(SLINGSHOT), log(SOCKETS) + NOT_FOUND
    line = network_of(TWO_NODES.hosts, [fast, fast, slow, fast])
    assert line.startswith("FAIL network: rank 2 (n2) uses Socket, channels over Socket, not cxi as ")
    assert "NCCL warning: Error: network AWS Libfabric not found." in line
    assert "pytorch-doctor" in line
    line = network_of(TWO_NODES.hosts, [fast] * 4)
    assert line.startswith("network: AWS Libfabric, provider cxi, channels over AWS Libfabric: the fast one")
    line = network_of(TWO_NODES.hosts, [""] * 4)
    assert line.startswith("FAIL network: ranks 0 (n1), 1 (n1), 2 (n2), 3 (n2)"), "a log without a word of the network"


def test_one_node_and_a_profile_without_a_fast_network_are_not_checked():
    assert "one node" in network_of(["n1", "n1"], [log(SOCKETS)] * 2)
    assert "not checked" in network_of(TWO_NODES.hosts, [log(SOCKETS)] * 4, "")
    assert "XCCL does not report it" in network_of(TWO_NODES.hosts, [""] * 4, device="xpu")
    assert "gloo" in network_of(TWO_NODES.hosts, [""] * 4, device="cpu")
