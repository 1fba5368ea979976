# SPDX-License-Identifier: BSD-3-Clause
"""Divides a model among the ranks: FSDP2, of copies and with tensor parallelism."""

from __future__ import annotations

import logging

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # torch 2.6 or newer
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from training import TrainingError
from training.distributed import World
from training.language.model import GPT, local


def make_mesh(world: World, replicas: int, tensor: int = 1) -> DeviceMesh:
    """Return the mesh of the ranks: ``replicas`` copies of the model, each divided among the rest.

    ``tensor`` ranks with consecutive numbers, such as those of a node, divide the heads and the layers of each block;
    the ranks of a copy are consecutive too. Raises TrainingError if the number of ranks is not a multiple.
    """
    parts = world.size // (replicas * tensor)
    if replicas * parts * tensor != world.size:
        raise TrainingError(f"--replicas {replicas}, --tensor {tensor}: not divisors of {world.size} ranks. Use others")
    sizes = {"replicate": replicas, "shard": parts, "tensor": tensor}
    used = {name: size for name, size in sizes.items() if size > 1 or name == "shard"}
    return init_device_mesh(world.device.type, tuple(used.values()), mesh_dim_names=tuple(used))


def divide_blocks(network: GPT, mesh: DeviceMesh) -> None:
    """Divide heads and layers of each block among the ranks of ``mesh``; of the other weights each has a copy."""
    # the weights are gathered once for each dimension, which torch reports in a line on each rank
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    if network.shape.heads % mesh.size():
        raise TrainingError(
            f"--tensor {mesh.size()}: the {network.shape.heads} heads of this model are not a multiple. Use a divisor, "
            "or another --size"
        )
    plan = {
        "attention.projection": ColwiseParallel(),
        "attention.output": RowwiseParallel(),
        "network.0": ColwiseParallel(),
        "network.2": RowwiseParallel(),
    }
    for block in network.blocks:
        parallelize_module(block, mesh, plan)
    for module in network.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            if not isinstance(weight, DTensor):
                copy = distribute_tensor(weight.detach(), mesh, [Replicate()])
                module.register_parameter(name, nn.Parameter(copy))


def shard(network: GPT, mesh: DeviceMesh, *, bf16: bool) -> None:
    """Divide the parameters of each block, and those outside the blocks, among the ranks of ``mesh``.

    A block's parameters are gathered when it computes, and freed afterwards. With ``bf16`` they are gathered
    and used in bfloat16; the parts that stay, and the sums of the gradients, are float32.
    """
    if "tensor" in mesh.mesh_dim_names:
        divide_blocks(network, mesh["tensor"])
        mesh = mesh[mesh.mesh_dim_names[:-1]]
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy()
    for block in network.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(network, mesh=mesh, mp_policy=policy)


def count_own(network: nn.Module) -> int:
    """Return the number of parameters that this rank keeps."""
    return sum(local(parameter).numel() for parameter in network.parameters())
