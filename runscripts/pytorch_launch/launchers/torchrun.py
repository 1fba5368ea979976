# SPDX-License-Identifier: BSD-3-Clause
"""The world of a worker of torchrun (torch.distributed.run, "Environment Variables")."""

from pytorch_launch.launchers import ALONE, LAUNCHERS, TORCHRUN, node_name
from pytorch_launch.launchers.inherited import check_step
from pytorch_launch.launchers.variables import make_world, optional_number
from pytorch_launch.world import AGENT, OF_TORCH


def worker(env, hostname):
    """The world that torchrun has exported."""
    world = make_world(
        env,
        OF_TORCH,
        node=node_name(env, hostname),
        first_host=env.get("MASTER_ADDR"),
        source=f"torchrun run {env['TORCHELASTIC_RUN_ID']}",
        launcher=_launcher(env),
        job=optional_number(env, "SLURM_JOB_ID"),
        node_cpus=optional_number(env, f"{AGENT}CPUS"),
        exported=True,
    )
    check_step(env, world, "TORCHELASTIC_RUN_ID")
    return world


def _launcher(env):
    """torchrun, with the hint of what started its agent: its workers have the agent's cores."""
    for launcher in LAUNCHERS:
        if launcher is not TORCHRUN and env.get(launcher.sign):
            return TORCHRUN._replace(more_cores=launcher.more_cores)
    return TORCHRUN._replace(more_cores=ALONE.more_cores)
