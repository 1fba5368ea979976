# SPDX-License-Identifier: BSD-3-Clause
"""Decides what becomes of variables by which OpenMP binds threads to cores.

libgomp does so as soon as torch is imported: the main thread, and all processes that it starts, get one core
(pytorch/pytorch#91989, #99625).
"""

from pytorch_launch import Problem
from pytorch_launch.world import AGENT

BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
#: Those that can name CPUs by number, each with a text in such values.
NUMBERS = {"OMP_PLACES": "{", "GOMP_CPU_AFFINITY": "", "KMP_AFFINITY": "proclist"}


def openmp_binding(env):
    """The variables by which OpenMP binds threads to cores, name to value; none if it binds nothing."""
    if env.get("OMP_PROC_BIND", "").lower() == "false":
        return {}
    return {name: env[name] for name in BINDING if env.get(name, "").lower() not in ("", "none", "disabled")}


def choose_openmp(env, world, cpus):
    """Variables to unset for a rank of `world` with these `cpus`, each with None, and Problems.

    CPU numbers that all ranks of a node have in common bind them to the same cores, and a rank with one CPU to another
    one: beyond their masks. For a worker, torchrun's agent has set the variables aside.
    """
    of_agent = {name: env[AGENT + name] for name in BINDING if env.get(AGENT + name)}
    changes, warnings, others = {}, [], {}
    for name, value in openmp_binding({**of_agent, **env}).items():
        has_numbers = name in NUMBERS and NUMBERS[name] in value
        if has_numbers and (world.local_size > 1 or len(cpus) == 1):
            changes[name] = None
            fault = f"{name}={value} names CPUs that other ranks may have, so it is unset"
            warnings.append(Problem(fault, "omit it: each rank has cores of its own"))
        else:
            others[name] = f"{name}={value}"
    if others and len(cpus) > 1:
        fault = f"{' '.join(others.values())} binds each rank, and the processes that it starts, such as workers of a "
        warnings.append(Problem(f"{fault}DataLoader, to one core", f"unset {' and '.join(others)}"))
    return changes, warnings
