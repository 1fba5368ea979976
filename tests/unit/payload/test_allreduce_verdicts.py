"""training/allreduce: NCCL's log, and the verdicts on the network, the bandwidth and slow ranks."""

from pathlib import Path

import pytest
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
    Network,
    Threshold,
    applicable_thresholds,
    check_bandwidth,
    check_network,
    check_speed,
    is_fast,
    log_nccl,
    read_nccl_log,
    read_thresholds,
)


@pytest.mark.parametrize(
    ("lines", "network", "fast_for"),
    [
        (SLINGSHOT, Network("AWS Libfabric", "cxi", ("AWS Libfabric",)), ["cxi"]),
        (NEWER_PLUGIN, Network("OFI", "cxi"), ["cxi"]),
        (LIBFABRIC_OVER_TCP, Network("AWS Libfabric", "tcp"), []),
        (INFINIBAND, Network("IB", None, ("IB",)), ["IB"]),
        (INFINIBAND.replace("network IB", "network IBext_v8"), Network("IBext_v8", None, ("IB",)), ["IB"]),
        (SOCKETS, Network("Socket", None, ("Socket",)), []),
        (
            SLINGSHOT + SOCKETS.strip().splitlines()[-1],
            Network("AWS Libfabric", "cxi", ("AWS Libfabric", "Socket")),
            [],
        ),
        # a provider is chosen, and then the plugin fails
        (SLINGSHOT.splitlines()[2] + "\nUsing network Socket", Network("Socket", "cxi"), []),
    ],
)
def test_nccls_lines_tell_which_network_is_used(lines, network, fast_for):
    found = read_nccl_log(log(lines))
    assert found == network
    assert [name for name in ("cxi", "IB") if is_fast(found, name)] == fast_for


def test_a_plugin_that_is_not_found_is_nccls_warning():
    assert read_nccl_log(NOT_FOUND).warning == " (NCCL warning: Error: network AWS Libfabric not found.)"
    assert read_nccl_log("") == Network()


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


def test_one_rank_on_sockets_fails_and_is_named():
    fast, slow = read_nccl_log(log(SLINGSHOT)), read_nccl_log(log(SOCKETS) + NOT_FOUND)
    line = check_network(FakeRanks(TWO_NODES.hosts, [fast, fast, slow, fast]), fast, "cxi")
    assert line.startswith("FAIL network: rank 2 (n2) uses Socket, channels over Socket, not cxi as ")
    assert "NCCL warning: Error: network AWS Libfabric not found." in line
    assert "pytorch-doctor" in line
    line = check_network(FakeRanks(TWO_NODES.hosts, [fast] * 4), fast, "cxi")
    assert line.startswith("network: AWS Libfabric, provider cxi, channels over AWS Libfabric: the fast one")


def test_a_log_without_a_word_of_the_network_fails_too():
    nothing = read_nccl_log("")
    assert check_network(TWO_NODES, nothing, "IB").startswith("FAIL network: ranks 0 (n1), 1 (n1), 2 (n2), 3 (n2)")


def test_one_node_and_a_profile_without_a_fast_network_are_not_checked():
    sockets = read_nccl_log(log(SOCKETS))
    assert "one node" in check_network(FakeRanks(["n1", "n1"]), sockets, "IB")
    assert "not checked" in check_network(TWO_NODES, sockets, None)
    assert "gloo" in check_network(TWO_NODES, None, "IB")
