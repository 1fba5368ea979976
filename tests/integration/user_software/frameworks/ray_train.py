"""Trains a small network with Ray Train on as many workers as its argument; the first one prints what it sees."""

import os
import sys

import ray.train
from ray.train.torch import TorchTrainer, prepare_model


def train():
    """One worker: Ray Train has set its rank, and joined it to the others."""
    import torch
    import torch.distributed as dist

    torch.manual_seed(1)
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(30):
        inputs = torch.randn(8, 16, generator=generator)
        loss = (model(inputs).squeeze(1) - inputs.sum(dim=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(mean := loss.detach().clone())
        losses.append(mean.item() / dist.get_world_size())
    ranks = torch.tensor(dist.get_rank())
    dist.all_reduce(ranks)
    nodes = [None] * dist.get_world_size()
    dist.all_gather_object(nodes, ray.get_runtime_context().get_node_id())
    if dist.get_rank() == 0:
        print(
            f"world {os.environ['WORLD_SIZE']}, sum of ranks {ranks} on {len(set(nodes))} Ray nodes, "
            f"{losses[0]:.3f} -> {losses[-1]:.3f}, {os.environ.get('OMP_NUM_THREADS')} thread"
        )


if __name__ == "__main__":
    scaling = ray.train.ScalingConfig(num_workers=int(sys.argv[1]), placement_strategy="SPREAD")
    storage = ray.train.RunConfig(storage_path=f"{os.getcwd()}/ray", name="run")  # noqa: PTH109
    TorchTrainer(train, scaling_config=scaling, run_config=storage).fit()
