"""allreduce_check.py: its options, NCCL's log, the verdicts, and complete runs with wrong ranks."""

import re
from pathlib import Path
from typing import NamedTuple

import allreduce_check as check
import pytest
import torch
from allreduce_check import Threshold
from launching import run_code
from training.distributed import World

pytestmark = pytest.mark.slow

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


def test_four_sound_ranks_pass_with_their_rows_and_columns():
    ranks = run_code(4, code("--max-size", "1K", "--threshold", "1e-9@1K", "--groups"))
    assert [rank.stdout for rank in ranks[1:]] == [""] * 3
    table, verdicts = lines_of(ranks[0])
    assert list(table) == [*(f"{2**power} B" for power in range(2, 10)), "1 KiB"]
    assert verdicts["sums"] == "sums: right in all 9 sizes on all ranks"
    assert verdicts["bandwidth"] == "bandwidth: 1 thresholds for these sizes and 1x4 ranks, all reached"
    assert verdicts["groups"] == "groups: 2 rows of 2 ranks, 2 columns of 2: right"
    assert ranks[0].stdout.splitlines()[-1] == "all-reduce check: ok"


#: Rank 1 adds wrong numbers.
WRONG = """
def wrong(message, real=dist.all_reduce, **options):
    if message.numel() > 16 and message.any():  # the zeros that are timed stay zeros
        message.view(-1)[-1] += 1
    real(message, **options)

if check.os.environ["RANK"] == "1":
    dist.all_reduce = wrong
"""


def test_wrong_sums_of_large_messages_and_a_missed_threshold_are_reported():
    ranks = run_code(3, code("--max-size", "256", "--threshold", "1e9@256", "--groups", "3", change=WRONG), status=1)
    table, verdicts = lines_of(ranks[0])
    assert [size for size in table if table[size] == "WRONG"] == ["128 B", "256 B"]
    named = r"ranks 0 \(\S+\), 1 \(\S+\), 2 \(\S+\)"
    assert re.match(rf"FAIL sums: wrong from 128 B on {named}\. ", verdicts["FAIL sums"])
    assert verdicts["FAIL bandwidth"].endswith("then try other nodes")
    assert re.match(rf"FAIL groups: wrong result on {named}\. ", verdicts["FAIL groups"])
    assert ranks[0].stdout.splitlines()[-1] == "all-reduce check: FAIL"


END = """
def leave(*_):
    os._exit(9)
if os.environ["RANK"] == "1":
    check.measure = leave
"""


def test_the_others_end_with_torchs_message_if_a_rank_has_ended():
    ranks = run_code(2, code("--max-size", "4", "--timeout", "3600", change=END), status=None)
    assert (ranks[0].status, ranks[1].status) == (1, 9)
    assert ranks[0].stderr.splitlines()[-1].startswith("rank 0: ")


def test_groups_that_do_not_divide_the_ranks_are_one_sentence(monkeypatch):
    monkeypatch.setattr(check.os, "environ", {})
    with pytest.raises(SystemExit, match="^rank 0: --groups 3: 1 ranks are not a multiple. Use a divisor$"):
        check.main(check.parse_options(["--groups", "3"]))


def test_options_take_precedence_over_the_profile(monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLREDUCE_BUSBW", "80.75@128MiB@2x8 10@1M")
    options = check.parse_options([])
    assert (options.max_size, options.timeout) == (2**24, 120)
    assert options.threshold == [Threshold(80.75, 2**27, "2x8"), Threshold(10, 2**20, "")]
    assert check.parse_options(["--gpu"]).max_size == 2**28
    assert check.parse_options(["--threshold", "1@4"]).threshold == [Threshold(1, 4, "")]


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
Using network IB
Channel 00/0 : 15[7] -> 0[0] [send] via NET/IB/0/GDRDMA
"""
SOCKETS = """
NET/IB : No device found.
NET/Socket : Using [0]ens3:172.31.12.210<0>
Using network Socket
Channel 00/0 : 15[7] -> 0[0] [send] via NET/Socket/0
"""


class Log(NamedTuple):
    """Lines of NCCL, the network that they name, and the names of PYTORCH_FAST_NETWORK for which it is fast."""

    lines: str
    network: str
    fast_for: list


LOGS = {
    "Slingshot": Log(SLINGSHOT, "AWS Libfabric cxi AWS Libfabric", ["cxi"]),
    "a newer plugin": Log(NEWER_PLUGIN, "OFI cxi", ["cxi"]),
    "libfabric over TCP": Log(LIBFABRIC_OVER_TCP, "AWS Libfabric tcp", []),
    "InfiniBand": Log(INFINIBAND, "IB IB", ["IB"]),
    "its plugin": Log(INFINIBAND.replace("network IB", "network IBext_v8"), "IBext_v8 IB", ["IB"]),
    "sockets": Log(SOCKETS, "Socket Socket", []),
    "some sockets": Log(SLINGSHOT + SOCKETS.splitlines()[-1], "AWS Libfabric cxi AWS Libfabric Socket", []),
    "nothing": Log("", "", []),
}


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_nccls_log_names_the_network_and_whether_it_is_the_fast_one(log):
    text = "".join(f"{HEAD}{line}\n" for line in log.lines.strip().splitlines())
    found = {expected: check.read_nccl_log(text, expected) for expected in ("cxi", "IB")}
    assert {network for network, _ in found.values()} == {log.network}
    assert [expected for expected, (_, is_fast) in found.items() if is_fast] == log.fast_for


@pytest.mark.parametrize(
    ("lines", "expected", "verdict"),
    [
        (SOCKETS, "cxi", r"FAIL network: not cxi .* on ranks 0 \(\S+\); here Socket Socket\. Run pytorch-doctor"),
        (SLINGSHOT, "cxi", r"network: AWS Libfabric cxi AWS Libfabric \(PYTORCH_FAST_NETWORK: cxi\)"),
        (SLINGSHOT, "", r"network: .* \(PYTORCH_FAST_NETWORK: not set, not checked\)"),
    ],
)
def test_the_network_between_gpus_of_several_nodes_is_judged(monkeypatch, lines, expected, verdict):
    monkeypatch.setattr(check, "gather", lambda value, _world: [value])
    text = "".join(f"{HEAD}{line}\n" for line in lines.strip().splitlines())
    gpus = World(0, 1, torch.device("cuda", 0))
    assert re.fullmatch(verdict, check.check_network(gpus, 2, text, expected))
    assert check.check_network(gpus, 1, text, expected).endswith("not checked")


def test_nccls_log_goes_to_memory_and_not_to_the_users_file():
    environment = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "mine"}
    read = check.log_nccl(environment)
    assert environment["NCCL_DEBUG"] == "INFO" and Path(environment["NCCL_DEBUG_FILE"]).parent == Path("/proc/self/fd")
    Path(environment["NCCL_DEBUG_FILE"]).write_text("a line\n")
    assert read() == "a line\n"
