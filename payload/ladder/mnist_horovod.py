#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Train a small network on MNIST with Horovod on any number of ranks, each on a GPU if there is one.

It gives the same result as mnist_multi.py; `diff` shows what Horovod does differently. Run it once per rank under
mpirun or srun: MPI provides the ranks.
"""

import math
import os
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the directory of training/
from training import TrainingError
from training.accelerator import find_accelerator
from training.data import load_dataset, normalise
from training.distributed import World, select_device
from training.finite import check_loss
from training.model import build_model
from training.options import parse_rung

try:
    import horovod.torch as hvd
except ImportError as error:
    sys.exit(f"mnist_horovod.py: {error}. Load a module that has Horovod (`module spider horovod`)")


def sum_over_ranks(values):
    """Return the sums of a 1-D tensor over all ranks."""
    return hvd.allreduce(values, op=hvd.Sum).tolist()


def train_epoch(model, optimizer, schedule, images, labels, batches, world):
    """Take one step for each batch of indices; return the mean loss over all images."""
    loss_sum = torch.zeros(1, device=images.device)
    for batch in batches:
        size, batch = len(batch), batch[world.rank :: world.size]  # all ranks have the same batch, each takes its share
        scores = model(images[batch])
        loss = F.cross_entropy(scores, labels[batch], reduction="sum")
        optimizer.zero_grad()
        # The gradients of the ranks are averaged: times their number, that is the gradient of the batch's mean loss.
        (loss * world.size / size).backward()
        optimizer.step()
        schedule.step()
        loss_sum += loss.detach()  # no .item(): that would wait for the GPU
    return sum_over_ranks(loss_sum)[0] / len(labels)


@torch.no_grad()
def evaluate(model, images, labels, world):
    """Return the percentage of images that are classified correctly."""
    correct = torch.zeros(1, device=images.device)
    for batch in torch.arange(len(labels), device=images.device).split(1000):
        batch = batch[world.rank :: world.size]  # each image counts once, for any number of ranks
        correct += (model(images[batch]).argmax(dim=1) == labels[batch]).sum()
    return 100 * sum_over_ranks(correct)[0] / len(labels)


def train(options, world):
    """Run the training."""
    device = world.device
    data = load_dataset(options.data, options.download)
    report = print if world.rank == 0 else (lambda *_, **__: None)  # only rank 0 prints
    report(f"world size {world.size}, Horovod, device {device}, torch {torch.__version__}, data {data.source}")

    # All images fit in memory, so they are loaded at once.
    images, labels = normalise(data.train_images, device), data.train_labels.to(device)
    test_images, test_labels = normalise(data.test_images, device), data.test_labels.to(device)

    torch.manual_seed(options.seed)
    model = build_model().to(device)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # DistributedDataParallel does this implicitly
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # step() averages the ranks' gradients
    steps = options.epochs * math.ceil(len(labels) / options.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=options.lr, total_steps=steps)
    shuffle = torch.Generator().manual_seed(options.seed)

    for epoch in range(1, options.epochs + 1):
        name, start = f"epoch {epoch}/{options.epochs}", time.perf_counter()
        batches = torch.randperm(len(labels), generator=shuffle).to(device).split(options.batch_size)
        loss = train_epoch(model, optimizer, schedule, images, labels, batches, world)
        speed = len(labels) / (time.perf_counter() - start)
        check_loss(loss, name, world)
        accuracy = evaluate(model, test_images, test_labels, world)
        report(f"{name}  loss {loss:.4f}  test accuracy {accuracy:.2f} %  images/s {speed:.0f}", flush=True)
    report(f"test accuracy: {accuracy:.2f} %")


if __name__ == "__main__":
    hvd.init()
    os.environ.setdefault("RANK", str(hvd.rank()))  # only rank 0 reports a wrong command line
    options = parse_rung(__doc__.splitlines()[0], gpu=find_accelerator() is not None, resumes=False)
    try:
        device = select_device(options.gpu, hvd.local_rank())
        train(options, World(hvd.rank(), hvd.size(), device))
    except TrainingError as error:
        sys.exit(f"rank {hvd.rank()}: {error}")  # Horovod ends the ranks that wait for this one
