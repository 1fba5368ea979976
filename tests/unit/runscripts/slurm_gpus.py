"""Slurm's variables for GPUs, and the numbers of GPUs on a node."""

from pytorch_launch import devices as chooser
from pytorch_launch.topology import Node


def choose_devices(env, root, local_rank, local_size):
    """The Devices of a rank with environment `env` on the node at `root`."""
    return chooser.choose_devices(env, Node(root), local_rank, local_size)


def slurm(step, on_node, **lists):
    """Slurm's variables for a task: the GPUs of the task, the number of the step's here, its lists of visible GPUs."""
    return {"SLURM_STEP_ID": "0", "SLURM_STEP_GPUS": step, "SLURM_GPUS_ON_NODE": str(on_node), **lists}


def numbers(root, found):
    """Which GPUs of the node those `found` are, None for none known."""
    if found is None:
        return None
    addresses = [gpu.pci for gpu in Node(root).gpus]
    return [addresses.index(gpu.pci) for gpu in found]


def own(root, devices):
    """The number on the node of the GPU that a rank uses, None if not known."""
    return None if devices.gpu is None else numbers(root, [devices.gpu])[0]
