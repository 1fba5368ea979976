"""The all-reduce check: ranks without processes, what they add up, NCCL's log, and the verdicts."""

import argparse
import os
import threading
from pathlib import Path

import allreduce_check
import pytest
import torch
from allreduce_check import (
    Ranks,
    Threshold,
    applicable_thresholds,
    check_bandwidth,
    check_network,
    last_warning,
    log_nccl,
    message_sizes,
    read_nccl_log,
    read_size,
    read_thresholds,
    show_size,
    sum_of,
)


class FakeRanks(Ranks):
    """Ranks whose values this one has received in advance."""

    calling_since, task = None, ""

    def __init__(self, hosts, answers=None):
        self.rank, self.size, self.hosts, self.answers = 0, len(hosts), hosts, answers
        self.device = torch.device("cpu")
        self.nodes = list(dict.fromkeys(hosts))

    def stay(self):
        pass

    def gather(self, value):
        return self.answers or [value] * self.size


TWO_NODES = FakeRanks(["n1", "n1", "n2", "n2"])
# Lines as NCCL, RCCL and the plugin for libfabric write them. Seen in NVIDIA/nccl-tests#185, aws/aws-ofi-nccl#161 and
# #889, eth-cscs/cscs-docs#75 and NCCL's guide, "Logging".
HEAD = "nid001261:1906368:1908390 [1] NCCL INFO "
SLINGSHOT = """
NET/OFI Using aws-ofi-rccl 1.4.0
NET/OFI Selected Provider is cxi
Using network AWS Libfabric
Channel 01/1 : 4[0] -> 0[0] [receive] via NET/AWS Libfabric/7/GDRDMA/Shared
Channel 00/0 : 0[d6000] -> 3[c6000] via P2P/IPC comm 0x9bbf3b0 nRanks 16
"""
NEWER_PLUGIN = """
NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)
Using network OFI
"""
LIBFABRIC_OVER_TCP = """
NET/OFI Selected provider is tcp, fabric is 10.201.0.0/16 (found 2 nics)
Using network AWS Libfabric
"""
INFINIBAND = """
NET/Plugin : No plugin found (libnccl-net.so), using internal implementation
NET/IB : Using [0]mlx5_10:1/RoCE [1]mlx5_11:1/RoCE [RO]; OOB enp220s0np0:11.1.128.136<0>
Initialized NET plugin IB
Assigned NET plugin IB to comm
Using network IB
Channel 00/0 : 15[7] -> 0[0] [send] via NET/IB/0/GDRDMA
"""
SOCKETS = """
NET/IB : No device found.
NET/Socket : Using [0]ens3:172.31.12.210<0>
Using network Socket
Channel 00/0 : 15[7] -> 0[0] [send] via NET/Socket/0
"""
NOT_FOUND = "nid006352:34157:34217 [1] net.cc:626 NCCL WARN Error: network AWS Libfabric not found.\n"


def log(lines):
    return "".join(HEAD + line + "\n" for line in lines.strip().splitlines())


def test_of_many_ranks_some_are_named():
    assert TWO_NODES.name([2]) == "rank 2 (n2)"
    assert FakeRanks(["n"] * 100).name(range(100)).endswith(", 7 (n) and 92 more")


@pytest.mark.parametrize(("task", "who"), [("", "rank 0 (n1)"), ("all_reduce in row 0", "groups: all_reduce in row 0")])
def test_a_call_or_a_collective_on_a_device_that_never_ends_ends_the_process(monkeypatch, capfd, task, who):
    """As on LUMI: https://github.com/lumi-ai-factory/laifs-container-recipes/issues/44."""
    ended = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda _: ended.set())
    monkeypatch.setattr(allreduce_check, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: ended.wait(60))
    ranks = FakeRanks(["n1", "n2"])
    ranks.device, ranks.timeout, ranks.task = torch.device("cuda", 0), 0.1, task
    ranks.read_log = lambda: NOT_FOUND + HEAD + "x\n"
    with ranks.watch_calls():
        ranks.calling_since = None  # waiting for a rank over TCP, with a time limit of its own
        assert not ended.wait(0.3)
        ranks.wait_for_device()
        assert ended.is_set()
    line = f"FAIL {who}: a collective of NCCL did not end within 0.09 s (NCCL warning: Error: "
    assert capfd.readouterr().err.startswith(line)


def test_after_the_checks_and_between_cpus_no_call_is_watched(monkeypatch):
    monkeypatch.setattr(allreduce_check, "WATCH_SECONDS", 0.01)
    before = set(threading.enumerate())
    ranks = FakeRanks(["n1", "n2"])
    with ranks.watch_calls():
        assert not set(threading.enumerate()) - before
    ranks.device, ranks.timeout = torch.device("cuda", 0), 60
    with ranks.watch_calls():
        (thread,) = set(threading.enumerate()) - before
    thread.join(60)
    assert not thread.is_alive()


def test_the_sum_of_the_contributions_is_exact_and_differs_for_every_rank_and_place():
    device = torch.device("cpu")
    parts = [sum_of([rank], 400, device) for rank in range(5)]
    assert torch.equal(sum(parts), sum_of(range(5), 400, device))
    assert len({tuple(part.tolist()) for part in parts}) == 5
    assert parts[0].shape == (100,)
    assert not torch.equal(parts[0][:50], parts[0][50:])


def test_sizes_and_thresholds_are_read_and_shown():
    sizes = {"4": 4, "64K": 65536, "64k": 65536, "128MiB": 2**27, "1GB": 2**30}
    assert {text: read_size(text) for text in sizes} == sizes
    shown = {4: "4 B", 1000: "1000 B", 1024: "1 KiB", 2**27: "128 MiB", 3 * 2**29: "1536 MiB"}
    assert {size: show_size(size) for size in shown} == shown
    expected = [Threshold(80.75, 2**27, "2x8"), Threshold(10, 2**20, None)]
    assert read_thresholds("80.75@128MiB@2x8 10@1M") == expected and read_thresholds("") == []


@pytest.mark.parametrize(
    ("read", "texts", "words"),
    [
        (read_size, ("", "0", "3", "-4", "4.5K", "K", "4T"), "is not a size"),
        (read_thresholds, ("80", "80@", "@1M", "80@1M@2", "80@1M@2x", "fast@1M"), "such as 80.75@128MiB@2x8"),
    ],
)
def test_what_is_no_size_and_no_threshold_is_refused_with_an_example(read, texts, words):
    for text in texts:
        with pytest.raises(argparse.ArgumentTypeError, match=words):
            read(text)


def test_sizes_go_up_by_four_and_hold_those_of_the_thresholds():
    assert message_sizes(1024, [Threshold(1, 128, None), Threshold(1, 4096, None)]) == [4, 16, 64, 128, 256, 1024]
    assert message_sizes(2**28, [])[-1] == 2**28
    assert message_sizes(1000, [])[-1] == 256


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


NO_THRESHOLD = "bandwidth: no threshold for 4 ranks on 2 nodes and these sizes; not checked."


@pytest.mark.parametrize(
    ("thresholds", "measured", "line"),
    [
        ("", {4: 1}, NO_THRESHOLD),
        ("9@1K@2x8", {1024: 1}, NO_THRESHOLD),
        ("9@1K", {1024: 9.5}, "bandwidth: at least 9 GB/s at 1 KiB, as expected"),
        ("9@1K@2x2", {1024: 8.5}, "FAIL bandwidth: 8.50 GB/s at 1 KiB, expected 9 GB/s. "),
        ("9@1M", {1024: 9.5}, NO_THRESHOLD),
    ],
)
def test_the_bandwidth_is_compared_with_a_threshold_for_this_shape_alone(thresholds, measured, line):
    for ranks, expected in ((TWO_NODES, line), (FakeRanks(["n1"]), "bandwidth: no threshold for 1 ranks")):
        applicable = applicable_thresholds(ranks, read_thresholds(thresholds))
        assert check_bandwidth(ranks, applicable, measured).startswith(expected)
    assert applicable_thresholds(FakeRanks(["n1", "n1", "n2"]), read_thresholds("9@1K@2x2")) == []


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
    assert "xccl does not report it" in network_of(TWO_NODES.hosts, [""] * 4, device="xpu")
    assert "gloo" in network_of(TWO_NODES.hosts, [""] * 4, device="cpu")
