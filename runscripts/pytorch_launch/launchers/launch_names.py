# SPDX-License-Identifier: BSD-3-Clause
"""The name of a launch in names of files, the same on each of its ranks, without communication."""

LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-"


def launch_name(env, world, launch, place):
    """The name for `world`, of letters that every file system has.

    `launch` is what `launch_id` returned, `place` what `choose_rendezvous` did; both are None for workers of torchrun,
    which share its run id. A job that Slurm requeues keeps its number, and counts its restarts in SLURM_RESTART_COUNT
    (sbatch(1), "OUTPUT ENVIRONMENT VARIABLES").
    """
    name = env.get("TORCHELASTIC_RUN_ID") if world.exported else launch
    if not name:
        # ranks that share only their rendezvous, which was exported
        name = f"{place['MASTER_ADDR']}-{place['MASTER_PORT']}"
    elif world.step is None and name.partition(".")[0] in ("local", "none"):
        # numbers of processes and torchrun's default repeat on other nodes
        host = world.node if world.local_size == world.size else world.first_host
        name = f"{'local' if world.job is None else world.job}.{host}.{name.rpartition('.')[2]}"
    if env.get("SLURM_RESTART_COUNT", "0") != "0":
        name = f"{name}-restart{env['SLURM_RESTART_COUNT']}"
    return "".join(letter if letter in LETTERS else "_" for letter in name).lstrip(".")[:200] or "launch"
