# SPDX-License-Identifier: BSD-3-Clause
"""The worlds of the MPI launchers: mpirun, mpiexec.

None of these reports the node of rank 0. It is the first host of the allocation, unless the user laid the ranks out in
another way, which rank 0 detects (`rendezvous`).
"""

from pytorch_launch import Problem, ancestors, read
from pytorch_launch.launchers import HYDRA, OPEN_MPI, PALS
from pytorch_launch.launchers.inherited import check_step
from pytorch_launch.launchers.variables import launch_number, make_world, number, optional_number, read_list

#: Beginnings of the names of the commands that start ranks; orted and others are their daemons.
COMMANDS = ("mpirun", "mpiexec", "orterun", "prterun")

#: What Open MPI 4 passes to ranks if its user asked for a binding (--bind-to, --map-by, or these variables).
OF_BINDING = ("OMPI_MCA_hwloc_base_binding_policy", "OMPI_MCA_rmaps_base_mapping_policy")


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
    """PALS, of HPE Cray systems with PBS (mpiexec(1) there); Cray's PMI adds the size of the world."""
    names = ("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE")
    return _world(env, hostname, names, launcher=PALS, launch=launch_number(env.get("PALS_APID")))


def _world(env, hostname, names, *, launcher, launch):
    """The world by the variables `names`."""
    rank, size, local_rank, local_size = [number(env, name) for name in names]
    first_host, node_rank = _position(env, hostname)
    if local_size >= size:
        first_host = "127.0.0.1"
        node_rank = 0
    elif node_rank is None:
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
