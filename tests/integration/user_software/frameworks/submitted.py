"""What submitit runs as each rank; torch is imported there, because the submitting Python may have none."""


def train():
    """Train a small network; return rank, sum of ranks, and the first and the last loss."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = torch.nn.parallel.DistributedDataParallel(model)
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
    rank = dist.get_rank()
    dist.destroy_process_group()
    return rank, ranks.item(), losses[0], losses[-1]
