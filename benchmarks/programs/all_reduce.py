"""The least that a distributed training does; run by the `cpu` rows of measurements.py as every rank."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
if total.item() != dist.get_world_size() or dist.get_world_size() != 2:
    sys.exit(f"{dist.get_world_size()} ranks add up to {total.item()}, not to 2")
dist.destroy_process_group()
