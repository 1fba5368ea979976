"""The cores of all ranks of a node, and Slurm's variables that decide them."""

from pytorch_launch import cores, devices
from pytorch_launch.launchers import SLURM
from pytorch_launch.topology import cpu_list, read_node
from pytorch_launch.world import World


def world(rank=0, size=1, **fields):
    """The World of a rank of `size`, all on this node."""
    fields.update(rank=rank, size=size, local_rank=rank, local_size=size, node_rank=0, launcher=SLURM)
    return World(node="nid001001", first_host="nid001001", source="Slurm step 7.0", **fields)


def step_gpus(env):
    """The World's fields with what Slurm reports about GPUs in `env`."""
    numbers, count = env.get("SLURM_STEP_GPUS"), env.get("SLURM_GPUS_ON_NODE")
    return {
        "step_gpus": [int(number) for number in numbers.split(",")] if numbers else None,
        "node_gpus": int(count) if count else None,
        "exported": "TORCHELASTIC_RUN_ID" in env,
    }


def choose_devices(env, root, rank, size, **fields):
    """The Devices of a rank with environment `env` on the node at `root`."""
    return devices.choose_devices(env, read_node(root), world(rank, size, **dict(step_gpus(env), **fields)))


def choose_cores(root, allowed, rank, size, job_cpus, cpus_per_task, chosen, *, launcher=None, **fields):
    """The Placement of a rank with Devices that no torchrun started; `launcher` is the mask of mpirun."""
    node = read_node(root, allowed=set(allowed))._replace(launcher_cpus=launcher)
    fields.update(node_cpus=job_cpus, cpus_per_task=cpus_per_task)
    return cores.choose_cores(node, world(rank, size, **fields), chosen)


def placed(root, allowed, size, *, env=None, job_cpus=None, cpus_per_task=None, gpus=True):
    """The Placements of all ranks of a node, which differ in nothing but their local rank.

    `env` may be a function of the local rank; without `gpus` there are none.
    """
    node = read_node(root, allowed=set(allowed))
    placements = []
    for rank in range(size):
        variables = env(rank) if callable(env) else env or {}
        of_rank = world(
            rank, size, node_cpus=job_cpus or len(allowed), cpus_per_task=cpus_per_task, **step_gpus(variables)
        )
        chosen = devices.choose_devices(variables, node, of_rank) if gpus else devices.NO_DEVICES
        placements.append(cores.choose_cores(node, of_rank, chosen))
    return placements


def binds(placements):
    """The lists of CPUs that ranks are bound to, as the kernel writes them, None for no binding."""
    return [None if placement.bind is None else cpu_list(placement.bind) for placement in placements]


def told(given, on_node=8):
    """The variables of Slurm for a rank to which it gives some of the GPUs that its step has on this node (22.05)."""
    lists = dict.fromkeys(("SLURM_STEP_GPUS", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"), given)
    return {"SLURM_STEP_ID": "0", "SLURM_GPUS_ON_NODE": str(on_node), **lists}
