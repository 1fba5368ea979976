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
    binding = openmp_binding({**of_agent, **env})
    numbered = []
    if world.local_size > 1 or len(cpus) == 1:
        numbered = _with_numbers(binding)
    warnings = []
    if numbered:
        fault = f"{_values(binding, numbered)} names CPUs that other ranks may have, so it is unset"
        warnings.append(Problem(fault, "omit it: each rank has cores of its own"))
    others = [name for name in binding if name not in numbered]
    if others and len(cpus) > 1:
        fault = f"{_values(binding, others)} binds each rank, and the processes that it starts, such as workers of a "
        warnings.append(Problem(f"{fault}DataLoader, to one core", f"unset {' and '.join(others)}"))
    return dict.fromkeys(numbered), warnings


def _with_numbers(binding):
    """Those of the variables that name CPUs by number."""
    return [name for name, value in binding.items() if name in NUMBERS and NUMBERS[name] in value]


def _values(binding, names):
    return " ".join(f"{name}={binding[name]}" for name in names)
