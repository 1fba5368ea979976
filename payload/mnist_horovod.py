#!/usr/bin/env python3
"""Train the network of mnist_ddp.py on MNIST with Horovod, on any number of ranks.

Run it once per rank under mpirun or srun; MPI tells Horovod the ranks. The result is that of
mnist_ddp.py with the same options, to rounding.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from mnist_ddp import build_model, learning_rate_factor
from training import TrainingError
from training.data import GlobalBatchSampler, load_dataset, normalise

try:
    import horovod.torch as hvd
except ImportError as error:
    sys.exit(f"mnist_horovod.py: {error}; load a module that has Horovod (`module spider horovod`)")


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--gpu", action="store_true", help="one GPU per rank (default: CPU)")
    add("--epochs", type=int, default=3, help="(default: %(default)s)")
    add("--batch-size", type=int, default=256, metavar="SAMPLES",
        help="in one step, over all ranks (default: %(default)s)")  # fmt: skip
    add("--lr", type=float, default=0.01, help="peak learning rate (default: %(default)s)")
    add("--seed", type=int, default=0, help="of weights and order (default: %(default)s)")
    add("--data", type=Path, metavar="DIR", default=os.environ.get("MNIST_ROOT") or None,
        help="the MNIST files (default: $MNIST_ROOT, else a drawn digits set)")  # fmt: skip
    return parser.parse_args(arguments)


def select_device(use_gpu: bool) -> torch.device:
    """Return this rank's device; the index is taken modulo the GPUs that the rank sees."""
    if not use_gpu:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise TrainingError("--gpu was given and no GPU is seen; run where one is, or leave --gpu out")
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def sum_over_ranks(value: torch.Tensor) -> float:
    return hvd.allreduce(value, op=hvd.Sum).item()


def train(options: argparse.Namespace) -> None:
    """Run the whole training on this rank; rank 0 prints."""

    def report(line: str) -> None:
        if hvd.rank() == 0:
            print(line, flush=True)

    device = select_device(options.gpu)
    data = load_dataset(options.data)
    report(f"world size {hvd.size()}, Horovod, device {device}, torch {torch.__version__}, data {data.source}")
    images, labels = normalise(data.train_images, device), data.train_labels.to(device)

    torch.manual_seed(options.seed)
    network = build_model().to(device)
    hvd.broadcast_parameters(network.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(network.parameters(), lr=options.lr), network.named_parameters()
    )
    sampler = GlobalBatchSampler(
        len(labels), options.batch_size,
        rank=hvd.rank(), world_size=hvd.size(), seed=options.seed, device=device,
    )  # fmt: skip
    steps = options.epochs * len(sampler)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, steps))

    for epoch in range(options.epochs):
        start = time.perf_counter()
        sampler.set_epoch(epoch)
        loss_sum = torch.zeros(1, dtype=torch.float64, device=device)
        for indices, batch_size in sampler:
            scores = network(images.index_select(0, indices))
            loss = F.cross_entropy(scores, labels.index_select(0, indices), reduction="sum")
            optimizer.zero_grad()
            # Horovod takes the mean of the ranks' gradients, as DistributedDataParallel does.
            (loss * hvd.size() / batch_size).backward()
            optimizer.step()
            schedule.step()
            loss_sum += loss.detach()
        loss = sum_over_ranks(loss_sum) / len(labels)
        seconds = time.perf_counter() - start
        report(f"epoch {epoch + 1}/{options.epochs}  loss {loss:.4f}  images/s {len(labels) / seconds:.0f}")

    with torch.no_grad():
        images = normalise(data.test_images[hvd.rank() :: hvd.size()], device)
        labels = data.test_labels[hvd.rank() :: hvd.size()].to(device)
        correct = sum(
            (network(batch).argmax(dim=1) == truth).sum()
            for batch, truth in zip(images.split(1000), labels.split(1000))
        )
    report(f"test accuracy: {100 * sum_over_ranks(correct) / len(data.test_labels):.2f} %")


def main(options: argparse.Namespace) -> None:
    hvd.init()
    try:
        train(options)
    except TrainingError as error:
        # Horovod ends the ranks that wait for this one.
        sys.exit(f"rank {hvd.rank()}: {error}")


if __name__ == "__main__":
    main(parse_arguments(sys.argv[1:]))
