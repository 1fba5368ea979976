"""What the tests of the all-reduce check stand on: ranks without processes, and lines of NCCL's log."""

import torch
from training.allreduce import Ranks


class FakeRanks:
    """Ranks whose values this one has received in advance."""

    def __init__(self, hosts, answers=None):
        self.rank, self.size, self.hosts, self.answers = 0, len(hosts), hosts, answers
        self.device = torch.device("cpu")
        self.nodes = list(dict.fromkeys(hosts))

    shape = Ranks.shape
    ring = Ranks.ring
    peers = Ranks.peers
    name = Ranks.name
    wait_for_device = Ranks.wait_for_device
    watch_calls = Ranks.watch_calls
    end = Ranks.end
    exit = Ranks.exit
    calling_since = None
    task = ""

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
