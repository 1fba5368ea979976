"""Prints the time at the end of the first training step of a small network, in each rank; torch's variables are set."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, 8)).sum().backward()
optimizer.step()
print(time.time(), flush=True)
dist.destroy_process_group()
time.sleep(0.1)  # gloo's threads end: https://github.com/pytorch/pytorch/issues/190489
