"""The least that a distributed training does: one all-reduce of two ranks; the job of the row `cpu`."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
if total.item() != dist.get_world_size() or dist.get_world_size() != 2:
    sys.exit(f"all_reduce.py: {dist.get_world_size()} ranks add up to {total.item()}, not to 2")
dist.destroy_process_group()
