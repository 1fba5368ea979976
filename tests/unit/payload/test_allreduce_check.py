"""The all-reduce check: what it makes of measurements and of NCCL's log, and whole runs with wrong and slow ranks."""

import re
import time
from pathlib import Path

import allreduce_check as check
import pytest
import torch
from allreduce_check import Network, Threshold

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


class FakeRanks:
    """Ranks of which this one has been told what the others say."""

    def __init__(self, hosts, answers=None):
        self.rank, self.size, self.hosts, self.answers = 0, len(hosts), hosts, answers
        self.device = torch.device("cpu")
        self.nodes = list(dict.fromkeys(hosts))

    shape = check.Ranks.shape
    ring = check.Ranks.ring
    peers = check.Ranks.peers
    name = check.Ranks.name
    wait_for_device = check.Ranks.wait_for_device

    def gather(self, value):
        return self.answers or [value] * self.size


TWO_NODES = FakeRanks(["n1", "n1", "n2", "n2"])


# Sizes and thresholds


@pytest.mark.parametrize(
    ("text", "size"), [("4", 4), ("64K", 65536), ("64k", 65536), ("128MiB", 2**27), ("1GB", 2**30)]
)
def test_a_size_is_read(text, size):
    assert check.read_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-4", "4.5K", "K", "4T"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="is no size"):
        check.read_size(text)


def test_a_size_is_shown_in_the_largest_unit_that_divides_it():
    assert [check.show_size(size) for size in (4, 1000, 1024, 2**27, 3 * 2**29)] == [
        "4 B", "1000 B", "1 KiB", "128 MiB", "1536 MiB",
    ]  # fmt: skip


def test_sizes_go_up_by_four_and_hold_those_of_the_thresholds():
    assert check.message_sizes(1024, [Threshold(1, 128, None), Threshold(1, 4096, None)]) == [4, 16, 64, 128, 256, 1024]
    assert check.message_sizes(2**28, [])[-1] == 2**28
    assert check.message_sizes(1000, [])[-1] == 256


def test_a_profiles_thresholds_are_read():
    assert check.read_thresholds("80.75@128MiB@2x8 10@1M") == [
        Threshold(80.75, 2**27, (2, 8)), Threshold(10, 2**20, None),
    ]  # fmt: skip
    assert check.read_thresholds("") == []


@pytest.mark.parametrize("text", ["80", "80@", "@1M", "80@1M@2", "80@1M@2x", "fast@1M"])
def test_what_is_no_threshold_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="such as 80.75@128MiB@2x8"):
        check.read_thresholds(text)


def test_the_bus_carries_what_nccl_tests_say():
    # doc/PERFORMANCE.md: a ring sends each byte 2 (n - 1) / n times over each link
    assert [check.bus_factor(ranks) for ranks in (1, 2, 4, 16)] == [0, 1, 1.5, 1.875]


@pytest.mark.parametrize(
    ("thresholds", "measured", "line"),
    [
        ("", {4: 1}, "bandwidth: no threshold is named for 2x2 (nodes x ranks); --threshold gives one"),
        ("9@1K@2x8", {1024: 1}, "bandwidth: no threshold is named for 2x2 (nodes x ranks); there is one for 2x8; "),
        ("9@1K", {1024: 9.5}, "bandwidth: at least 9 GB/s at 1 KiB, as expected"),
        ("9@1K@2x2", {1024: 8.5}, "FAIL bandwidth: 8.50 GB/s at 1 KiB, where 9 GB/s are expected; "),
        ("9@1M", {1024: 9.5}, "bandwidth: not judged, the threshold is for 1 MiB: give --max-size"),
    ],
)
def test_the_bandwidth_is_judged_by_a_threshold_for_this_shape_alone(thresholds, measured, line):
    assert check.check_bandwidth(TWO_NODES, check.read_thresholds(thresholds), measured).startswith(line)


def test_one_rank_alone_has_no_bandwidth_to_judge():
    one = FakeRanks(["n1"])
    assert check.fitting_ones(one, [Threshold(9, 4, None)]) == []
    assert check.check_bandwidth(one, [Threshold(9, 4, None)], {4: 0.0}).endswith("nothing to judge")


def test_nodes_with_different_numbers_of_ranks_have_no_shape():
    assert FakeRanks(["n1", "n1", "n2"]).shape is None
    assert TWO_NODES.shape == (2, 2)


# Sums, and who is wrong


def test_the_sum_of_the_contributions_is_exact_and_tells_every_rank_and_place():
    device = torch.device("cpu")
    parts = [check.sum_of([rank], 400, device) for rank in range(5)]
    assert torch.equal(sum(parts), check.sum_of(range(5), 400, device))
    assert len({tuple(part.tolist()) for part in parts}) == 5
    assert parts[0].shape == (100,)
    assert not torch.equal(parts[0][:50], parts[0][50:])


@pytest.mark.parametrize(
    ("is_wrong", "named"),
    [
        (lambda members: 2 in members, [[2]]),
        (lambda members: 0 in members or 6 in members, [[0], [6]]),
        # each of them is right alone: what is wrong lies between them
        (lambda members: {2, 3} <= set(members), [[2, 3]]),
        (lambda members: {0, 6} <= set(members), [[0, 1, 2, 3, 4, 5, 6]]),
    ],
)
def test_the_smallest_sets_of_ranks_that_are_wrong_are_found(monkeypatch, is_wrong, named):
    monkeypatch.setattr(check, "_right_together", lambda _, members, __: not is_wrong(members))
    assert check.find_wrong(FakeRanks(["n"] * 7), 4) == named


# Slow ranks


def test_neighbours_are_paired_so_that_nobody_is_asked_twice_at_once():
    for count in range(2, 9):
        turns = check.pairs_in_turn(count)
        for turn in turns:
            places = [place for pair in turn for place in pair]
            assert len(places) == len(set(places))
        pairs = sorted(tuple(sorted(pair)) for turn in turns for pair in turn)
        ring = sorted({tuple(sorted((place, (place + 1) % count))) for place in range(count)})
        assert pairs == ring
    assert check.pairs_in_turn(1) == []


def test_neighbours_are_on_other_nodes_however_the_ranks_are_laid_out():
    for hosts, ring in ((["a"] * 3, [0, 1, 2]), (["a", "a", "b", "b"], [1, 3]), (["a", "b", "a", "b"], [0, 1])):
        ranks = FakeRanks(hosts)
        ranks.rank = ring[-1]
        assert ranks.ring == ring
        ranks.rank = ring[0]
        assert ranks.ring == ring


def test_of_many_ranks_some_are_named():
    assert TWO_NODES.name([2]) == "rank 2 (n2)"
    assert FakeRanks(["n"] * 100).name(range(100)).endswith(", 7 (n) and 92 more")


def test_a_rank_is_slow_in_comparison_with_the_middle_one():
    assert check.slow_ones([1.0, 1.1, 3.0, 0.9], 2) == [2]
    assert check.slow_ones([1.0, 2.0], 2) == [1]
    assert check.slow_ones([2.0, 1.9, 0.1], 2) == []
    assert check.slow_ones([None, 1.0, 3.0], 2) == [2]
    assert check.slow_ones([None, None], 2) == []


@pytest.mark.parametrize(
    ("seconds", "line"),
    [
        ([1, 1, 9, 1, 1, 9, 1, 1, 9], "speed: no rank is slow: 1000.00 to 9000.00 ms alone"),
        ([1, 1, 9, 1, 1, 9, 1, 1, 1], "FAIL speed: ranks 2 (a), 5 (b): 9000.00, 9000.00 ms alone, "),
        ([1, 9, 9, 1, 1, 9, 1, 1, 9], "FAIL speed: rank 1 (a): 9000.00 ms alone, "),
    ],
)
def test_what_is_slow_on_every_node_is_how_the_nodes_are_built(monkeypatch, seconds, line):
    monkeypatch.setattr(check, "time_alone", lambda _: None)
    monkeypatch.setattr(check, "time_with_neighbours", lambda _: None)
    ranks = FakeRanks([node for node in "abc" for _ in range(3)], seconds)
    assert check.check_speed(ranks, 2).startswith(line)


# NCCL's log


@pytest.mark.parametrize(
    ("lines", "network", "fast_for"),
    [
        (SLINGSHOT, Network("AWS Libfabric", "cxi", ("AWS Libfabric",), None), ["cxi"]),
        (NEWER_PLUGIN, Network("OFI", "cxi", (), None), ["cxi"]),
        (LIBFABRIC_OVER_TCP, Network("AWS Libfabric", "tcp", (), None), []),
        (INFINIBAND, Network("IB", None, ("IB",), None), ["IB"]),
        (INFINIBAND.replace("network IB", "network IBext_v8"), Network("IBext_v8", None, ("IB",), None), ["IB"]),
        (SOCKETS, Network("Socket", None, ("Socket",), None), []),
        (
            SLINGSHOT + SOCKETS.strip().splitlines()[-1],
            Network("AWS Libfabric", "cxi", ("AWS Libfabric", "Socket"), None),
            [],
        ),
        # a provider is chosen, and then the plugin fails
        (SLINGSHOT.splitlines()[2] + "\nUsing network Socket", Network("Socket", "cxi", (), None), []),
    ],
)
def test_nccls_lines_tell_which_network_is_used(lines, network, fast_for):
    found = check.read_nccl_log(log(lines))
    assert found == network
    assert [name for name in ("cxi", "IB") if check.is_fast(found, name)] == fast_for


def test_a_plugin_that_is_not_found_is_nccls_warning():
    assert check.read_nccl_log(NOT_FOUND).warning == "Error: network AWS Libfabric not found."
    assert check.read_nccl_log("") == Network(None, None, (), None)


def test_one_rank_on_sockets_fails_and_is_named():
    fast, slow = check.read_nccl_log(log(SLINGSHOT)), check.read_nccl_log(log(SOCKETS) + NOT_FOUND)
    line = check.check_network(FakeRanks(TWO_NODES.hosts, [fast, fast, slow, fast]), fast, "cxi")
    assert line.startswith("FAIL network: rank 2 (n2) uses Socket, channels over Socket, and not cxi as ")
    assert "NCCL warns: Error: network AWS Libfabric not found." in line
    assert "pytorch-doctor" in line
    line = check.check_network(FakeRanks(TWO_NODES.hosts, [fast] * 4), fast, "cxi")
    assert line.startswith("network: AWS Libfabric, provider cxi, channels over AWS Libfabric: the fast one")


def test_a_log_without_a_word_of_the_network_fails_too():
    nothing = check.read_nccl_log("")
    assert check.check_network(TWO_NODES, nothing, "IB").startswith(
        "FAIL network: ranks 0 (n1), 1 (n1), 2 (n2), 3 (n2)"
    )


def test_one_node_and_a_profile_without_a_fast_network_are_not_judged():
    sockets = check.read_nccl_log(log(SOCKETS))
    assert "one node" in check.check_network(FakeRanks(["n1", "n1"]), sockets, "IB")
    assert "nothing to judge" in check.check_network(TWO_NODES, sockets, None)
    assert "gloo" in check.check_network(TWO_NODES, None, "IB")


def test_a_collective_that_never_ends_is_the_ranks_last_sentence_before_torch_ends_it(monkeypatch, capsys):
    class Event:
        ends, queries = False, 0

        def record(self):
            pass

        def query(self):
            Event.queries += 1
            return self.ends and Event.queries >= 0

    monkeypatch.setattr(check.torch.cuda, "Event", Event)
    monkeypatch.setattr(check.os, "_exit", check.sys.exit)
    ranks = FakeRanks(["n1", "n2"])
    ranks.device, ranks.timeout, ranks.read_log = torch.device("cuda", 0), 0.01, lambda: NOT_FOUND + HEAD + "x\n"
    with pytest.raises(SystemExit) as ended:
        ranks.wait_for_device()
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("FAIL rank 0 (n1): a collective of NCCL did not end within 0.009 s (NCCL warns: Error: net")
    ranks.timeout, Event.ends, Event.queries = 60, True, -3
    ranks.wait_for_device()
    assert Event.queries == 0


def test_nccls_log_is_kept_in_memory():
    environment = {}
    read = check.log_nccl(environment)
    with Path(environment["NCCL_DEBUG_FILE"]).open("w") as file:  # as NCCL does
        file.write("one\ntwo\n")
        file.flush()
        assert read() == "one\ntwo\n"


# Whole runs


RUN = """
import allreduce_check as check
{change}
check.main(check.parse_options([{options}]))
"""


def code(*options, change=""):
    return RUN.format(options=", ".join(map(repr, options)), change=change)


def lines_of(rank):
    """The lines of rank 0: the table's rows by size, and the others by what they are about."""
    lines = rank.stdout.splitlines()
    table = {line[:10].strip(): line.split()[-1] for line in lines if re.match(r" +\d+ (B|[KM]iB) ", line)}
    return table, {line.split(":")[0]: line for line in lines}


def test_two_sound_ranks_pass(run_code):
    ranks = run_code(2, code("--max-size", "4K", "--threshold", "1e-9@1K", "--slow", "50"))
    assert [rank.status for rank in ranks] == [0, 0], ranks
    assert ranks[1].stdout == ""
    table, said = lines_of(ranks[0])
    assert list(table) == ["4 B", "16 B", "64 B", "256 B", "1 KiB", "4 KiB"]
    assert said["sums"] == "sums: right in all 6 sizes on all ranks"
    assert said["bandwidth"] == "bandwidth: at least 1e-09 GB/s at 1 KiB, as expected"
    assert said["speed"].startswith("speed: no rank is slow")
    assert ranks[0].stdout.splitlines()[-1] == "all-reduce check: ok"


WRONG_AND_LATE = """
import time, torch.distributed as dist
def worse(real, rank, change):
    def call(*arguments, **options):
        change(*arguments)
        return real(*arguments, **options)
    return call if check.os.environ["RANK"] == rank else real
def lie(message, *_):
    if message.numel() > 16:
        message.view(-1)[-1] += 1
dist.all_reduce = worse(dist.all_reduce, "1", lie)
dist.batch_isend_irecv = worse(dist.batch_isend_irecv, "2", lambda _: time.sleep(0.1))
"""


def test_a_rank_that_lies_in_large_messages_and_one_on_a_slow_link_are_named_and_a_threshold_that_is_missed(run_code):
    options = ("--max-size", "256", "--threshold", "1e9@256", "--slow", "9")
    ranks = run_code(3, code(*options, change=WRONG_AND_LATE))
    assert [rank.status for rank in ranks] == [1, 1, 1], ranks
    table, said = lines_of(ranks[0])
    assert table == {"4 B": "right", "16 B": "right", "64 B": "right", "256 B": "WRONG"}
    assert re.search(r"wrong from 256 B on .*: rank 1 \(\S+\) adds wrong numbers, also alone;", said["FAIL sums"])
    assert said["FAIL bandwidth"].endswith("try other nodes")
    assert re.match(r"FAIL speed: rank 2 \(\S+\): [\d.]+ ms exchanging 1 MiB, others ", said["FAIL speed"])
    assert ranks[0].stdout.splitlines()[-1] == "all-reduce check: FAIL: sums, bandwidth, speed"


GROUPS = """
import torch.distributed as dist
real = dist.new_group
def new_group(ranks=None, timeout=None, *arguments, **options):
    print("group", ranks, timeout, flush=True)
    return real(ranks, timeout, *arguments, **options)
dist.new_group = new_group
"""


def test_a_rank_makes_a_group_of_its_own_alone_and_every_group_has_the_time_limit(run_code):
    ranks = run_code(2, code("--max-size", "4", "--slow", "50", "--timeout", "77", change=GROUPS))
    said = [[line for line in rank.stdout.splitlines() if line.startswith("group")] for rank in ranks]
    assert said == [["group [0] 0:01:17"], ["group [1] 0:01:17"]], ranks


STUTTER = """
import subprocess
if check.os.environ["RANK"] == "1":
    loop = "while kill -STOP $0; do sleep 0.09; kill -CONT $0; sleep 0.01; done"
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.Popen(["sh", "-c", loop, str(check.os.getpid())], **silent)
"""


def test_a_rank_that_stands_still_most_of_the_time_like_a_throttled_processor_is_named(run_code):
    ranks = run_code(2, code("--max-size", "64", "--slow", "2", change=STUTTER))
    _, said = lines_of(ranks[0])
    assert re.match(r"FAIL speed: rank 1 \(\S+\): [\d.]+ ms alone, others ", said["FAIL speed"]), ranks
    assert [rank.status for rank in ranks] == [1, 1]


def test_a_fault_is_one_sentence_that_names_the_rank(monkeypatch):
    monkeypatch.setattr(check.os, "environ", {"RANK": "3"})
    with pytest.raises(SystemExit) as ended:
        check.main(check.parse_options([]))
    assert ended.value.code.startswith("rank 3: WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT not set")


@pytest.mark.parametrize("options", [("--max-size", "x"), ("--threshold", "1"), ("--slow", "1"), ("--max-size", "2")])
def test_an_option_that_makes_no_sense_is_refused(capsys, options):
    with pytest.raises(SystemExit) as ended:
        check.parse_options(options)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_the_profiles_threshold_is_taken_unless_one_is_given(monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLREDUCE_BUSBW", "80.75@128MiB@2x8")
    assert check.parse_options([]).threshold == [Threshold(80.75, 2**27, (2, 8))]
    assert check.parse_options(["--threshold", "1@4"]).threshold == [Threshold(1, 4, None)]


HANG = """
import os, time
check.ANSWER_SECONDS = 3
def hang(*_):
    if os.environ["RANK"] == "{rank}":
        time.sleep(9)
        os._exit(0)
    raise RuntimeError("Timed out waiting for recv operation")  # what gloo raises at the end of --timeout
check.measure_all = hang
"""


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.thorough), 1])
def test_a_rank_that_hangs_is_named_by_the_others(run_code, rank):
    ranks = run_code(3, code("--max-size", "4", "--timeout", "60", change=HANG.format(rank=rank)))
    for number in {0, 1, 2} - {rank}:
        assert ranks[number].status == 1, ranks
        last = ranks[number].stderr.splitlines()[-1]
        assert re.match(rf"FAIL rank {rank} \(\S+\): no answer, and a collective did not end within 60 s: ", last)


END = """
import os
check.ANSWER_SECONDS = 5
if os.environ["RANK"] == "{rank}":
    check.measure_all = lambda *_: os._exit(9)
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_has_ended_is_named_alone_and_before_the_time_limit(run_code, rank):
    begun = time.monotonic()
    ranks = run_code(4, code("--max-size", "4", "--timeout", "60", change=END.format(rank=rank)))
    assert time.monotonic() - begun < 45
    for number in {0, 1, 2, 3} - {rank}:
        assert ranks[number].status == 1, ranks
        last = ranks[number].stderr.splitlines()[-1]
        name = r"1 \(\S+\)" if rank else "0, or the process that holds its store,"
        assert re.match(rf"FAIL rank {name}: no answer, and a collective failed: it hangs or has ended ", last), ranks
