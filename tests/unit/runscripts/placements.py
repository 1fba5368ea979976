"""The cores of all ranks of a node, and Slurm's variables that decide them."""

from types import SimpleNamespace

from pytorch_launch import cores
from pytorch_launch.devices import Devices, choose_devices
from pytorch_launch.topology import Node, cpu_list


def choose_cores(root, allowed, rank, size, job_cpus, cpus_per_task, devices, *, masks=None, launcher=None, node=None):
    """The Placement of a rank that no torchrun started; `launcher` is the mask of mpirun."""
    fields = {"local_rank": rank, "local_size": size, "node_cpus": job_cpus, "cpus_per_task": cpus_per_task}
    world = SimpleNamespace(**fields, masks=masks, exported=False, unbound=False)
    return cores.choose_cores(node or Node(root, allowed=set(allowed), launcher_cpus=launcher), world, devices)


def placed(root, allowed, size, *, env=None, job_cpus=None, cpus_per_task=None, gpus=True):
    """The Placements of all ranks of a node, which differ in nothing but their local rank.

    `env` may be a function of the local rank; without `gpus` there are none.
    """
    placements = []
    for rank in range(size):
        variables = env(rank) if callable(env) else env or {}
        devices = choose_devices(variables, Node(root), rank, size) if gpus else Devices()
        placements.append(
            choose_cores(root, set(allowed), rank, size, job_cpus or len(allowed), cpus_per_task, devices),
        )
    return placements


def binds(placements):
    """The lists of CPUs that ranks are bound to, as the kernel writes them, None for no binding."""
    return [None if placement.bind is None else cpu_list(placement.bind) for placement in placements]


def told(given, on_node=8):
    """The variables of Slurm for a rank to which it gives some of the GPUs that its step has on this node (22.05)."""
    lists = dict.fromkeys(("SLURM_STEP_GPUS", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"), given)
    return {"SLURM_STEP_ID": "0", "SLURM_GPUS_ON_NODE": str(on_node), **lists}
