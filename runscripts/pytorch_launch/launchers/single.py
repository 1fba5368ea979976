# SPDX-License-Identifier: BSD-3-Clause
"""The world of a process that no launcher started."""

from pytorch_launch.container import check_cleaned
from pytorch_launch.launchers.slurm import STEP_MARKS
from pytorch_launch.launchers.variables import check_exported, node_name, optional_number
from pytorch_launch.world import World, WorldError


def process(env, hostname):
    """A world of one. A batch script is such a process, with the SLURM_PROCID=0 of its job."""
    check_cleaned(env)
    if env.get("SLURM_PROCID", "0") != "0":
        raise WorldError(
            f"SLURM_PROCID={env['SLURM_PROCID']} is a rank, but one of {', '.join(STEP_MARKS)} and "
            "SLURM_STEP_ID is missing",
            "pass Slurm's variables on (a container without --cleanenv)",
        )
    world = World(
        rank=0,
        size=1,
        local_rank=0,
        local_size=1,
        node_rank=0,
        node=node_name(env, hostname),
        first_host="127.0.0.1",
        source="single process",
        job=optional_number(env, "SLURM_JOB_ID"),
        allocation=tuple(optional_number(env, name) or 1 for name in ("SLURM_NTASKS", "SLURM_JOB_NUM_NODES")),
    )
    check_exported(env, world, {}, "no srun, mpirun or torchrun started this process")
    return world
