# SPDX-License-Identifier: BSD-3-Clause
"""The worlds of torchrun."""

from pytorch_launch.launchers.variables import check_inside, check_step, node_name, number, optional_number
from pytorch_launch.world import World


def worker(env, hostname):
    """The world of a worker (torch.distributed.run, "Environment Variables"), as torchrun exported it."""
    world = World(
        rank=number(env, "RANK"),
        size=number(env, "WORLD_SIZE"),
        local_rank=number(env, "LOCAL_RANK"),
        local_size=number(env, "LOCAL_WORLD_SIZE"),
        node_rank=number(env, "GROUP_RANK"),
        node=node_name(env, hostname),
        first_host=env.get("MASTER_ADDR"),
        source=f"torchrun run {env['TORCHELASTIC_RUN_ID']}",
        job=optional_number(env, "SLURM_JOB_ID"),
        exported=True,
    )
    check_inside(env, "RANK", "WORLD_SIZE", world.size)
    check_inside(env, "LOCAL_RANK", "LOCAL_WORLD_SIZE", world.local_size)
    check_step(env, world)
    return world
