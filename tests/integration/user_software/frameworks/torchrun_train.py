"""Trains a linear model with DDP in a script that is written for torchrun, as docs/frameworks.md shows."""

import os
import time

import torch
import torch.distributed as dist

if __name__ == "__main__":
    torch.manual_seed(1)
    inputs = torch.randn(64, 8)
    samples = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    dist.init_process_group("gloo")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = torch.utils.data.DistributedSampler(samples)
    batches = torch.utils.data.DataLoader(samples, 4, sampler=sampler)
    for features, targets in batches:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(features.to(device)), targets.to(device)).backward()
        optimizer.step()
    place = f"rank {dist.get_rank()} of {dist.get_world_size()}"
    os.write(1, f"{place}, weights {model.module.weight.sum():.5f}, {len(batches)} batches\n".encode())
    dist.destroy_process_group()
    time.sleep(0.1)  # docs/troubleshooting.md: with gloo, a process that ends at once may abort
