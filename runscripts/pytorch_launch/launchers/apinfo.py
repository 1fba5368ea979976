# SPDX-License-Identifier: BSD-3-Clause
"""The nodes and ranks of a launch, as the file that PALS, or Flux for Cray's PMI, writes on each node.

The file is an array of C structures without padding between them; its header has their sizes and places (pals.h,
version 5; flux-coral2, src/common/libapinfo/apinfo1.h and apinfo5.h: the versions agree in what is read here).
"""

import sys

from pytorch_launch import Value

# Of the header, in bytes: where the numbers `pe_size` to `nnodes` are, and how long the header is at least.
PE_SIZE, PE_OFFSET, PES, NODE_SIZE, NODE_OFFSET, NODES, HEADER = 64, 72, 80, 88, 96, 104, 112
# Of the structure of a rank: its node is the third number; of that of a node: its name follows a number.
RANK_NODE, NODE_NAME, INT = 8, 4, 4


class Layout(Value):
    """Where the ranks of a launch run.

    `first_host`  name of the node of rank 0
    `size`        number of ranks
    `local_size`  number of ranks on the node of this rank
    `node_rank`   of the node of this rank, counted from the node of rank 0
    """

    __slots__ = ("first_host", "local_size", "node_rank", "size")


def read_layout(path, rank):
    """The Layout for rank `rank`, None if the file is not readable, such as in a container, or is no such file."""
    try:
        with open(path or "", "rb") as file:  # noqa: PTH123  (pathlib costs more than all of this package)
            data = file.read()
    except OSError:
        return None
    if len(data) < HEADER:
        return None
    pe_size, pe_offset, size, node_size, node_offset, nodes = (
        int.from_bytes(data[place : place + INT], sys.byteorder)
        for place in (PE_SIZE, PE_OFFSET, PES, NODE_SIZE, NODE_OFFSET, NODES)
    )
    if (
        not rank < size
        or pe_size < RANK_NODE + INT
        or pe_size % INT
        or len(data) < max(pe_offset + pe_size * size, node_offset + node_size * nodes)
    ):
        return None
    of_ranks = memoryview(data[pe_offset : pe_offset + pe_size * size]).cast("i")[RANK_NODE // INT :: pe_size // INT]
    nodes_of_ranks = of_ranks.tolist()
    start = node_offset + node_size * nodes_of_ranks[0]
    name = data[start + NODE_NAME : start + node_size].partition(b"\0")[0].decode(errors="replace")
    if not name or not 0 <= nodes_of_ranks[0] < nodes:
        return None
    node = nodes_of_ranks[rank]
    node_rank = (node - nodes_of_ranks[0]) % nodes
    return Layout(first_host=name, size=size, local_size=nodes_of_ranks.count(node), node_rank=node_rank)
