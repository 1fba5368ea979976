"""Trains a small network with DeepSpeed, in the ZeRO stage that is its argument; each rank prints what it sees."""

import os
import sys
import time

import deepspeed
import torch
import torch.distributed as dist

deepspeed.init_distributed()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.Adam(model.parameters(), lr=0.01),
    config={"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": int(sys.argv[1])}},
)
generator = torch.Generator().manual_seed(dist.get_rank())
losses = []
for _ in range(30):
    inputs = torch.randn(8, 16, generator=generator).to(engine.device)
    loss = (engine(inputs).squeeze(1) - inputs.sum(dim=1)).square().mean()
    engine.backward(loss)
    engine.step()
    dist.all_reduce(mean := loss.detach().clone())
    losses.append(mean.item() / dist.get_world_size())
ranks = torch.tensor(dist.get_rank())
dist.all_reduce(ranks)
line = f"rank {dist.get_rank()} of {dist.get_world_size()}, sum of ranks {ranks}, {losses[0]:.3f} -> {losses[-1]:.3f}\n"
os.write(1, line.encode())  # in one write: srun mixes the partial writes of ranks
dist.destroy_process_group()
time.sleep(0.1)  # docs/troubleshooting.md: with gloo, a process that ends at once may abort
