#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Train a small network on MNIST on any number of ranks, each on a GPU if there is one.

The rung below is mnist_single.py; `diff` shows what each rank does differently. mnist_ddp.py adds what a long
training needs.
"""

import math
import os
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the directory of training/
from training import TrainingError
from training.accelerator import find_accelerator
from training.checkpoint import Run, open_checkpoints
from training.data import fingerprint, load_dataset, normalise
from training.distributed import fail_together, process_group, sum_over_ranks
from training.finite import check_loss
from training.model import build_model
from training.options import parse_rung
from training.profiling import Profile


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
    with fail_together(world):  # a rank that cannot read the data ends all ranks
        data = load_dataset(options.data, options.download)
    report = print if world.rank == 0 else (lambda *_, **__: None)  # only rank 0 prints
    report(f"world size {world.size}, device {device}, torch {torch.__version__}, data {data.source}")

    # All images fit in memory, so they are loaded at once.
    images, labels = normalise(data.train_images, device), data.train_labels.to(device)
    test_images, test_labels = normalise(data.test_images, device), data.test_labels.to(device)

    torch.manual_seed(options.seed)
    model = DistributedDataParallel(build_model().to(device))  # backward() averages the ranks' gradients
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    steps = options.epochs * math.ceil(len(labels) / options.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=options.lr, total_steps=steps)
    shuffle = torch.Generator().manual_seed(options.seed)

    settings = {"epochs": options.epochs, "batch size": options.batch_size, "lr": options.lr, "seed": options.seed}
    run = Run(model.module, optimizer, schedule, settings, world, data=fingerprint(data))
    checkpoints = open_checkpoints(options, world)
    if file := run.resume(checkpoints):
        report(f"resuming after {run.position.epoch} epochs, from {file}")

    profile = Profile(options, run.world, report)
    for epoch in range(1, options.epochs + 1):
        name, start = f"epoch {epoch}/{options.epochs}", time.perf_counter()
        batches = torch.randperm(len(labels), generator=shuffle).to(device).split(options.batch_size)
        if epoch <= run.position.epoch:
            continue  # trained by an earlier start
        kind, share = "CPU" if device.type == "cpu" else "GPU", len(batches[0][world.rank :: world.size])
        print(f"[{kind}{world.rank}] Epoch {epoch} | Batchsize: {share} | Steps: {len(batches)}", flush=True)
        loss = train_epoch(model, optimizer, schedule, images, labels, profile.batches(batches), world)
        speed = len(labels) / (time.perf_counter() - start)
        check_loss(loss, name, world)
        accuracy = evaluate(model.module, test_images, test_labels, world)
        report(f"{name}  loss {loss:.4f}  test accuracy {accuracy:.2f} %  images/s {speed:.0f}", flush=True)
        run.position.end_epoch(accuracy)
        run.save(checkpoints)  # rank 0 writes
    report(f"test accuracy: {run.position.accuracy:.2f} %")


if __name__ == "__main__":
    options = parse_rung(__doc__.splitlines()[0], gpu=find_accelerator() is not None)
    try:
        with process_group(os.environ, use_gpu=options.gpu, timeout=300) as world:
            train(options, world)
    except TrainingError as error:
        sys.exit(f"rank {os.environ.get('RANK', '0')}: {error}")
