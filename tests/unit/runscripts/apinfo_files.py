"""Builds the file in which PALS, or Flux for Cray's PMI, describes a launch."""

import struct


def apinfo_file(version, ranks, hosts):
    """The file of a launch, by pals.h and flux-coral2's apinfo1.h and apinfo5.h; C pads the numbers of its header.

    `ranks` has the node of each rank, `hosts` the names of the nodes.
    """
    nodes = b"".join(struct.pack("i64s", number, host.encode()) for number, host in enumerate(hosts))
    local = [ranks[:rank].count(node) for rank, node in enumerate(ranks)]
    pes = b"".join(struct.pack("iii", index, 0, node) for index, node in zip(local, ranks))
    commands = struct.pack("iii", len(ranks), 2, 1)
    header_size = {1: 136, 5: 160}[version]
    places = [header_size, header_size + len(commands)]
    places += [places[1] + len(pes), places[1] + len(pes) + len(nodes)]
    numbers = [version, places[3], 48, header_size, 0, len(commands), places[0], 1, 12, places[1], len(ranks), 68]
    numbers += [places[2], len(hosts), 80, places[3], 0]
    header = struct.pack("i4xNNNi4xNNi4xNNi4xNNi4xNNi4x".replace("N", "Q"), *numbers)
    return header.ljust(header_size, b"\0") + commands + pes + nodes
