# SPDX-License-Identifier: BSD-3-Clause
"""Chooses where PyTorch's flight recorder writes when a collective of NCCL or RCCL times out.

The recorder keeps the last collectives of each rank in memory. `pytorch-stacks --dumps` compares the files of all
ranks. Without these settings all jobs of a user write to the same files, and older versions of torch record or write
nothing.
"""

import os

from pytorch_launch.launchers import launch_name

#: Vendors whose GPUs use ProcessGroupNCCL, also for RCCL.
VENDORS = ("nvidia", "amd")

#: Collectives that are kept, PyTorch's own recommendation ("Flight Recorder for Debugging Stuck Jobs").
ENTRIES = "2000"

# Names of a setting, the newest first. torch before 2.8 has the second alone (pytorch/pytorch, pull request 152563);
# later versions warn on every rank that it is deprecated.
SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
ON_TIMEOUT = ("TORCH_NCCL_DUMP_ON_TIMEOUT",)
RENAMED = (2, 8)

#: Variable of the module with the version of torch.
VERSION = "EBVERSIONPYTORCH"


def plan_flight(plan):
    """The Plan `plan` with the settings of the recorder, if its rank uses NCCL or RCCL. Nothing is written.

    What is exported under either name takes precedence. The dumps go to one private directory of the user, with the
    launch in their names: so no job leaves an empty directory behind. Its `dumps` is that directory, None if there is
    none to make.
    """
    env, world = plan.env, plan.world
    if world.size == 1 or plan.devices.vendor not in VENDORS:
        return plan
    cache = env.get("XDG_CACHE_HOME") or (f"{env['HOME']}/.cache" if env.get("HOME") else "")
    file = dumps = None
    if cache.startswith("/"):
        dumps = f"{cache}/pytorch-dumps"
        file = f"{dumps}/{launch_name(env, world, plan.launch, plan.place)}-rank_"
    changes = {**_setting(env, SIZE, ENTRIES), **_setting(env, FILE, file), **_setting(env, ON_TIMEOUT, "1")}
    return plan.replace(
        changes={**plan.changes, **changes}, dumps=dumps if any(name in changes for name in FILE) else None
    )


def make_dumps(plan):
    """Make the directory of dumps; return the Plan, without the setting if the directory is not private."""
    try:
        os.makedirs(plan.dumps, mode=0o700, exist_ok=True)
        found = os.lstat(plan.dumps)
        if found.st_uid == os.geteuid() and found.st_mode & 0o170077 == 0o040000:  # a directory of the owner alone
            return plan
    except OSError:
        pass
    return plan.replace(changes={name: value for name, value in plan.changes.items() if name not in FILE})


def _setting(env, names, value):
    """A variable for a setting that is not exported, under the name for the module's torch."""
    if value is None or any(env.get(name) for name in names):
        return {}
    numbers = env.get(VERSION, "").split(".")[:2]
    is_old = len(numbers) == 2 and all(number.isdecimal() for number in numbers) and (*map(int, numbers),) < RENAMED
    return {names[-1 if is_old else 0]: value}
