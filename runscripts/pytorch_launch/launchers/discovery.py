# SPDX-License-Identifier: BSD-3-Clause
"""Finds the launcher that started this process, and the world that it reports."""

from pytorch_launch import LaunchError
from pytorch_launch.launchers import ALONE, LAUNCHERS, SLURM, TORCHRUN
from pytorch_launch.launchers.inherited import SUBMIT, is_inherited, is_of_another_step, is_of_this_job
from pytorch_launch.world import LAUNCH_ID, OF_TORCH


def discover(env, hostname):
    """The World of the process with environment `env` on `hostname`. Raises LaunchError."""
    inherited = _of_another_step(env)
    for launcher in LAUNCHERS:
        if not env.get(launcher.sign):
            continue
        if launcher.sign == inherited or _is_left_over(launcher, env):
            inherited = inherited or launcher.sign
            continue
        world = _ask(launcher, env, hostname, inherited)
        if world is not None:
            return world
    return _function(ALONE)(env, hostname, inherited)


def speaks_for_node(env):
    """Whether this process is the first task on this node of the launch that started it, or outside any launch."""
    for launcher in LAUNCHERS:
        if launcher is not TORCHRUN and env.get(launcher.sign) and not _is_left_over(launcher, env):
            return launcher.is_first_task(env)
    return True


def _is_left_over(launcher, env):
    """Whether the variables of a launcher are of a launch around this job."""
    return launcher is not SLURM and is_inherited(env, launcher.sign)


def _of_another_step(env):
    """The variable by which this package knows that its launch is around this job or step, None if it has none."""
    for name in (TORCHRUN.sign, LAUNCH_ID):
        if is_of_another_step(env, name):
            return name
    return None


def _ask(launcher, env, hostname, inherited):
    """The World of one launcher, None if it did not start this process.

    `inherited` is a variable of another launch, None without one: then torch's variables may be of that launch as well.
    """
    if inherited:
        env = dict(env)
        env.update(dict.fromkeys(OF_TORCH, ""))
    world = _function(launcher)(env, hostname)
    if world is not None and inherited:
        remedy = SUBMIT
        if is_of_this_job(env, inherited):
            remedy = (
                f"a rank of this job started it: unset {inherited}, and torch's variables such as RANK, before that"
            )
        raise LaunchError(f"{inherited}={env[inherited]} is of another launch than {world.source}", remedy)
    return world


def _function(launcher):
    """The function of a launcher; a rank imports the module of the one that started it."""
    module, function = launcher.discover.split(":")
    # `importlib` would import `warnings`
    return getattr(__import__(f"pytorch_launch.launchers.{module}", fromlist=[function]), function)
