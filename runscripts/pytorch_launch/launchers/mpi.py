# SPDX-License-Identifier: BSD-3-Clause
"""The worlds of the MPI launchers: mpirun, mpiexec.

Of these, only PALS reports the node of rank 0. It is the first host of the allocation, unless the user laid the
ranks out in another way, which rank 0 detects (`rendezvous`).
"""

from pytorch_launch import Problem, Record, ancestors, read
from pytorch_launch.launchers import HYDRA, OPEN_MPI, PALS
from pytorch_launch.launchers.inherited import check_step
from pytorch_launch.launchers.variables import launch_number, make_world, number, optional_number, read_list

#: Beginnings of the names of the commands that start ranks; orted and others are their daemons.
COMMANDS = ("mpirun", "mpiexec", "orterun", "prterun")

#: What Open MPI 4 passes to ranks if its user asked for a binding (--bind-to, --map-by, or these variables).
OF_BINDING = ("OMPI_MCA_hwloc_base_binding_policy", "OMPI_MCA_rmaps_base_mapping_policy")


class Layout(Record):
    """Where the ranks of a launch run.

    The name of the node of rank 0, the number of ranks, that of ranks on the node of this rank, and the number of this
    node, counted from the node of rank 0.
    """

    fields = "first_host size local_size node_rank"


def open_mpi(env, hostname):
    """Open MPI 4 and 5 ("Environment variables set for MPI applications")."""
    names = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
    launch = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid")
    world = _world(env, hostname, names, launcher=OPEN_MPI, launch=launch_number(launch))
    # Open MPI 5 gives ranks the same variables whether its user asked or not
    is_asked = any(env.get(name) for name in OF_BINDING)
    return world._replace(binds_by_default=not is_asked)


def hydra(env, hostname):
    """Hydra, the launcher of MPICH, MVAPICH and Intel MPI (MPICH wiki, "Hydra Process Management Framework").

    It copies the environment of its first node to the others, including SLURMD_NODENAME.
    """
    names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    return _world(env, hostname, names, launcher=HYDRA, launch=launch_number(_step_of_daemons(env)))


def _step_of_daemons(env):
    """The step of Hydra's daemons, None where it does not identify a launch.

    In a job its daemons are a step, and all of them, including the first, have that step's variables. Daemons that ssh
    started have copies of them, with the rest of the environment. On one node it starts no step, and its proxy tells
    its launches apart, unless a container hides it.
    """
    is_one_node = env.get("MPI_LOCALNRANKS") == env.get("PMI_SIZE")
    if is_one_node and any(name == "hydra_pmi_proxy" for _, name in ancestors()):
        return None
    step = env.get("SLURM_STEP_ID") or env.get("PBS_JOBID")
    if not step:
        return None
    return f"{env.get('SLURM_JOB_ID')}.{step}"


def pals(env, hostname):
    """PALS, of HPE Cray systems with PBS (mpiexec(1) there; pals.h); Cray's PMI adds the size of the world.

    The file PALS_APINFO has size and nodes of this launch, also where `mpiexec --hosts` chose them. Without it, as in a
    container that does not bind its directory, the nodes are those of the job.
    """
    names = ("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE")
    fields = {"launcher": PALS, "launch": launch_number(env.get("PALS_APID"))}
    layout = read_layout(env.get("PALS_APINFO"), number(env, "PALS_RANKID"))
    if layout is None or env.get("PMI_SIZE") not in (None, "", str(layout.size)):
        return _world(env, hostname, names, **fields, node_rank=number(env, "PALS_NODEID"))
    env = {**env, "PMI_SIZE": str(layout.size)}
    return _world(env, hostname, names, **fields, first_host=layout.first_host, node_rank=layout.node_rank)


def _world(env, hostname, names, *, launcher, launch, first_host=None, node_rank=None):
    """The world by the variables `names`; `first_host` and `node_rank` are None where the launcher reports neither."""
    rank, size, local_rank, local_size = [number(env, name) for name in names]
    if local_size >= size:
        first_host = "127.0.0.1"
        node_rank = 0
    elif first_host is None:
        first_host, index = _position(env, hostname)
        if node_rank is None:
            node_rank = index
    if node_rank is None:
        # This host has another name in the allocation: assume nodes that are alike, with blocks of ranks, which is the
        # default of every launcher.
        node_rank = max(0, rank - local_rank) // max(1, local_size)
    world = make_world(
        env,
        names,
        node_rank=node_rank,
        node=hostname,
        first_host=first_host,
        source=launcher.name,
        launcher=launcher,
        job=optional_number(env, "SLURM_JOB_ID"),
        launch=launch,
        node_cpus=optional_number(env, "SLURM_CPUS_ON_NODE"),
        problems=_in_each_task(env, rank),
    )
    check_step(env, world, names[0])
    return world


def _in_each_task(env, rank):
    """Problems of rank 0: one if each of several tasks of a step runs mpirun, as in `srun -n2 mpirun -np 4`."""
    tasks = optional_number(env, "SLURM_STEP_NUM_TASKS") or 1
    if rank != 0 or tasks == 1 or env.get("SLURM_PTY_PORT"):
        return []
    from pytorch_launch.launchers.slurm import is_batch_script  # which may have the variables of a step around its job

    command = _command_above()
    if command is None or is_batch_script(env):
        return []
    fault = f"if each of the {tasks} tasks of this Slurm step runs {command}, each starts a world of its own"
    return [Problem(fault, f"for one world, start {command} without srun")]


def _command_above():
    """The name of the mpirun above this process, None if a step of Slurm is between them, as above its daemons."""
    for _, name in ancestors():
        if name.startswith(COMMANDS):
            return name
        if name == "slurmstepd":
            return None
    return None


def _position(env, host):
    """The first host of the job's allocation, and the position of `host` there; each None where it is not known.

    Names that differ are compared up to the first dot.
    """
    if env.get("SLURM_JOB_NODELIST"):
        hosts = read_list(env, "SLURM_JOB_NODELIST")
    else:  # at some sites only the first node of the job has this file, and only containers that bind it
        hosts = list(dict.fromkeys((read(env.get("PBS_NODEFILE") or "") or "").split()))
    shorts = [name.partition(".")[0] for name in hosts]
    short = host.partition(".")[0]
    first_host = hosts[0] if hosts else None
    index = shorts.index(short) if short in shorts else None
    if host in hosts:
        index = hosts.index(host)
    return first_host, index


# The file that PALS writes on each node: an array of C structures without padding between them, whose header has their
# sizes and places (pals.h, version 5). Of the header, every second number from the 16th to the 26th is one of these; of
# the structure of a rank, its node is the third number; of that of a node, its name follows a number.
HEADER = "28i"
RANK = "3i"
INT = 4


def read_layout(path, rank):
    """The Layout for rank `rank`; None if the file is not readable, such as in a container, or is no such file."""
    from struct import error, unpack_from

    try:
        with open(path or "", "rb") as file:  # noqa: PTH123  (pathlib costs more than all of this package)
            data = file.read()
        rank_size, ranks, size, node_size, names, nodes = unpack_from(HEADER, data)[16:28:2]
        node_of = [unpack_from(RANK, data, ranks + rank_size * number)[2] for number in range(size)]
    except (OSError, error):
        return None
    if not 0 <= rank < size or len(data) < names + node_size * nodes:
        return None
    first = node_of[0]
    start = names + node_size * first
    host = data[start + INT : start + node_size].partition(b"\0")[0].decode(errors="replace")
    if not 0 <= first < nodes or not host:
        return None
    return Layout(host, size, node_of.count(node_of[rank]), (node_of[rank] - first) % nodes)
