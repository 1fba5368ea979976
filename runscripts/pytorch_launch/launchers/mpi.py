# SPDX-License-Identifier: BSD-3-Clause
"""The worlds of the MPI launchers: mpirun, mpiexec, aprun.

None of them but PALS reports the node of rank 0. It is the first host of the allocation, unless the user laid the
ranks out in another way, which rank 0 detects (`rendezvous`).
"""

import sys

from pytorch_launch import Value, read
from pytorch_launch.nodelist import first_and_index
from pytorch_launch.world import (
    OF_TORCH,
    World,
    WorldError,
    check_exported,
    check_inside,
    check_step,
    number,
    optional_number,
    read_list,
    text_number,
)


def open_mpi(env, hostname):
    """Open MPI 4 and 5 ("Environment variables set for MPI applications")."""
    launch = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid")
    names = (f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
    return _world(env, hostname, names, "Open MPI", launch)


def hydra(env, hostname):
    """Hydra, the launcher of MPICH, MVAPICH and Intel MPI (MPICH wiki, "Hydra Process Management Framework").

    It copies the environment of its first node to the others, including SLURMD_NODENAME.
    """
    names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    # In a job its daemons are a step, and all of them, including the first, have that step's variables. Daemons
    # that ssh started have copies of them, with the rest of the environment.
    step = env.get("SLURM_STEP_ID") or env.get("PBS_JOBID")
    return _world(env, hostname, names, "MPICH", step and f"{env.get('SLURM_JOB_ID')}.{step}")


def pals(env, hostname):
    """PALS, of HPE Cray systems with PBS (mpiexec(1) there; pals.h); Cray's PMI adds the size of the world.

    The file PALS_APINFO has size and nodes of this launch, also where `mpiexec --hosts` chose them. Without it, as in a
    container that does not bind its directory, the nodes are those of the job.
    """
    names = ["PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", "PALS_NODEID"]
    layout = read_layout(env.get("PALS_APINFO"), number(env, "PALS_RANKID"))
    if layout is not None and env.get("PMI_SIZE") in (None, "", str(layout.size)):
        env = {**env, "PMI_SIZE": str(layout.size)}
        del names[4]  # that of the layout is counted from rank 0
    elif not env.get("PMI_SIZE"):
        if env.get("WORLD_SIZE"):
            names[1] = "WORLD_SIZE"
        else:
            raise WorldError(
                "PALS_RANKID is set, but PMI_SIZE, the number of ranks, is not",
                "export it as WORLD_SIZE, for example with `mpiexec -n 24 --env WORLD_SIZE=24`",
            )
    return _world(env, hostname, names, "PALS", env.get("PALS_APID"), layout)


def pmi(env, hostname):
    """Another launcher with Cray's PMI, whose variables are in intro_mpi(3)."""
    names = ("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE")
    return _world(env, hostname, names, "PMI", env.get("PMI_JOBID") or env.get("PBS_JOBID"))


def _world(env, hostname, names, source, launch, layout=None):
    """The world that the variables `names` of a launcher describe, those of OF_TORCH in its words.

    `launch` is text that its ranks share, `layout` the Layout that the launcher reports, None if it reports none.
    """
    names = dict(zip(OF_TORCH, names))
    rank, size, local_rank, local_size = (number(env, names[name]) for name in OF_TORCH[:4])
    check_inside(env, names["RANK"], names["WORLD_SIZE"], size)
    check_inside(env, names["LOCAL_RANK"], names["LOCAL_WORLD_SIZE"], local_size)
    if local_size > size:
        raise WorldError(
            f"{names['LOCAL_WORLD_SIZE']}={local_size} ranks on this node are more than "
            f"{names['WORLD_SIZE']}={size} in the world",
            "look for variables of another launch",
        )
    if local_size == size:
        first, node_rank = "127.0.0.1", 0
    elif layout is not None and layout.size == size:
        first, node_rank = layout.first_host, layout.node_rank
    else:
        first, node_rank = _place(env, hostname, rank, local_rank, local_size)
    world = World(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        node_rank=number(env, names["GROUP_RANK"]) if "GROUP_RANK" in names else node_rank,
        node=hostname,
        first_host=first,
        source=source,
        job=optional_number(env, "SLURM_JOB_ID"),
        launch=text_number(launch) if launch else None,
        node_cpus=optional_number(env, "SLURM_CPUS_ON_NODE"),
    )
    check_step(env, world, names["RANK"])
    check_exported(env, world, names, f"{source} started this process")
    return world


def _place(env, hostname, rank, local_rank, local_size):
    """The first host of the allocation, None if not known, and the position of this node in it."""
    for host in (hostname, hostname.partition(".")[0]):
        first, index = _allocation(env, host)
        if index is not None:
            return first, index
    # This host has another name in the allocation. Assume nodes that are alike, with blocks of ranks, which is the
    # default of every launcher.
    return first, (rank - local_rank) // local_size


def _allocation(env, host):
    """The first host of the job's allocation and the position of `host` in it, None where not known."""
    if env.get("SLURM_JOB_NODELIST"):
        return read_list(env, "SLURM_JOB_NODELIST", first_and_index, host)
    if env.get("PBS_NODEFILE"):
        # at some sites only the first node of the job has this file, and only containers that bind it
        hosts = list(dict.fromkeys((read(env["PBS_NODEFILE"]) or "").split()))
        if hosts:
            short = [name.partition(".")[0] for name in hosts]
            return hosts[0], hosts.index(host) if host in hosts else short.index(host) if host in short else None
    return None, None


# The file that PALS, or Flux for Cray's PMI, writes on each node: an array of C structures without padding between
# them, whose header has their sizes and places (pals.h, version 5; flux-coral2, src/common/libapinfo/apinfo1.h and
# apinfo5.h: the versions agree in what is read here).
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
