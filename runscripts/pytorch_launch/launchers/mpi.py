# SPDX-License-Identifier: BSD-3-Clause
"""The worlds of torchrun and of the MPI launchers: mpirun, mpiexec, aprun.

Of the latter, only PALS reports the node of rank 0. It is the first host of the allocation, unless the user laid the
ranks out in another way, which rank 0 detects (`rendezvous`).
"""

from pytorch_launch import Problem, ancestors, read
from pytorch_launch.world import (
    AGENT,
    OF_TORCH,
    check_step,
    make_world,
    node_name,
    number,
    optional_number,
    read_list,
    text_number,
)


def torchrun(env, hostname):
    """The world of a worker (torch.distributed.run, "Environment Variables"), as torchrun exported it."""
    world = make_world(
        env,
        OF_TORCH,
        node=node_name(env, hostname),
        first_host=env.get("MASTER_ADDR"),
        source=f"torchrun run {env['TORCHELASTIC_RUN_ID']}",
        job=optional_number(env, "SLURM_JOB_ID"),
        node_cpus=optional_number(env, f"{AGENT}CPUS"),
        exported=True,
    )
    check_step(env, world, "TORCHELASTIC_RUN_ID")
    return world


def open_mpi(env, hostname):
    """Open MPI 4 and 5 ("Environment variables set for MPI applications")."""
    launch = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid")
    names = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
    return _world(env, hostname, names, "Open MPI", launch)


def hydra(env, hostname):
    """Hydra, the launcher of MPICH, MVAPICH and Intel MPI (MPICH wiki, "Hydra Process Management Framework").

    It copies the environment of its first node to the others, including SLURMD_NODENAME.
    """
    names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    # In a job its daemons are a step, and all of them, including the first, have that step's variables. Daemons
    # that ssh started have copies of them, with the rest of the environment. On one node it starts no step,
    # and its proxy tells its launches apart, unless a container hides it.
    is_one_node = env.get("MPI_LOCALNRANKS") == env.get("PMI_SIZE")
    is_proxys = is_one_node and any(name == "hydra_pmi_proxy" for _, name in ancestors())
    step = None if is_proxys else env.get("SLURM_STEP_ID") or env.get("PBS_JOBID")
    return _world(env, hostname, names, "MPICH", step and f"{env.get('SLURM_JOB_ID')}.{step}")


def pals(env, hostname):
    """PALS, of HPE Cray systems with PBS (mpiexec(1) there; pals.h); Cray's PMI adds the size of the world.

    The file PALS_APINFO has size and nodes of this launch, also where `mpiexec --hosts` chose them. Without it, as in a
    container that does not bind its directory, the nodes are those of the job.
    """
    names = ("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE")
    layout = read_layout(env.get("PALS_APINFO"), number(env, "PALS_RANKID"))
    if layout is None or env.get("PMI_SIZE") not in (None, "", str(layout[1])):
        return _world(env, hostname, names, "PALS", env.get("PALS_APID"), node_rank=number(env, "PALS_NODEID"))
    env = {**env, "PMI_SIZE": str(layout[1])}
    return _world(env, hostname, names, "PALS", env.get("PALS_APID"), first=layout[0], node_rank=layout[3])


def pmi(env, hostname):
    """Another launcher with Cray's PMI, whose variables are in intro_mpi(3)."""
    names = ("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE")
    return _world(env, hostname, names, "PMI", env.get("PMI_JOBID") or env.get("PBS_JOBID"))


def _world(env, hostname, names, source, launch, *, first=None, node_rank=None):
    """The world by the variables `names`; `launch` is text that its ranks share, `first` the host of rank 0."""
    rank, size, local_rank, local_size = (number(env, name) for name in names)
    if local_size >= size:
        first, node_rank = "127.0.0.1", 0
    elif first is None:
        first, index = _allocation(env, hostname)
        if node_rank is None:
            # If this host has another name in the allocation: assume nodes that are alike, with blocks of ranks, which
            # is the default of every launcher.
            node_rank = max(0, rank - local_rank) // max(1, local_size) if index is None else index
    world = make_world(
        env,
        names,
        node_rank=node_rank,
        node=hostname,
        first_host=first,
        source=source,
        job=optional_number(env, "SLURM_JOB_ID"),
        launch=text_number(launch),
        node_cpus=optional_number(env, "SLURM_CPUS_ON_NODE"),
        problem=_repeated(env, rank),
    )
    check_step(env, world, names[0])
    return world


def _repeated(env, rank):
    """A Problem of rank 0 if each of several tasks of a step runs mpirun, as in `srun -n2 mpirun -np 4`, or None."""
    tasks = optional_number(env, "SLURM_STEP_NUM_TASKS") or 1
    if rank != 0 or tasks == 1 or env.get("SLURM_PTY_PORT"):
        return None
    from pytorch_launch.launchers.slurm import is_batch_script  # which may have the variables of a step around its job

    names = [name for _, name in ancestors()]
    start = next(
        (name for name in names if name.startswith(("mpirun", "mpiexec", "orterun", "prterun", "slurmstepd"))), ""
    )
    if start in ("", "slurmstepd") or is_batch_script(env):  # of a daemon of mpirun
        return None
    fault = f"if each of the {tasks} tasks of this Slurm step runs {start}, each starts a world of its own"
    return Problem(fault, f"for one world, start {start} without srun")


def _allocation(env, host):
    """The first host of the job's allocation and the position of `host` in it, None where not known."""
    if env.get("SLURM_JOB_NODELIST"):
        hosts = read_list(env, "SLURM_JOB_NODELIST")
    else:  # at some sites only the first node of the job has this file, and only containers that bind it
        hosts = list(dict.fromkeys((read(env.get("PBS_NODEFILE") or "") or "").split()))
    shorts, short = [name.partition(".")[0] for name in hosts], host.partition(".")[0]
    found = (names.index(name) for names, name in ((hosts, host), (shorts, host), (shorts, short)) if name in names)
    return next(iter(hosts), None), next(found, None)


# The file that PALS, or Flux for Cray's PMI, writes on each node: an array of C structures without padding between
# them, whose header has their sizes and places (pals.h, version 5; flux-coral2, src/common/libapinfo/apinfo1.h and
# apinfo5.h: the versions agree in what is read here). Of the header, every second number from the 16th to the 26th is
# one of these; of the structure of a rank, its node is the third number; of that of a node, its name follows a number.
HEADER, INT = 112, 4


def read_layout(path, rank):
    """Where the ranks of a launch run, None if the file is not readable, such as in a container, or is no such file.

    The name of the node of rank 0, the number of ranks, that of ranks on the node of rank `rank`, and the number of
    this node, counted from the node of rank 0.
    """
    try:
        with open(path or "", "rb") as file:  # noqa: PTH123  (pathlib costs more than all of this package)
            data = file.read()
    except OSError:
        return None
    if len(data) < HEADER:
        return None
    header = memoryview(data[:HEADER]).cast("i").tolist()
    pe_size, pe_offset, size, node_size, node_offset, nodes = header[16:28:2]
    end = max(pe_offset + pe_size * size, node_offset + node_size * nodes)
    if not rank < size or pe_size < 3 * INT or pe_size % INT or len(data) < end:
        return None
    of_ranks = memoryview(data[pe_offset : pe_offset + pe_size * size]).cast("i")[2 :: pe_size // INT].tolist()
    first, node = of_ranks[0], of_ranks[rank]
    start = node_offset + node_size * first
    name = data[start + INT : start + node_size].partition(b"\0")[0].decode(errors="replace")
    if not name or not 0 <= first < nodes:
        return None
    return name, size, of_ranks.count(node), (node - first) % nodes
