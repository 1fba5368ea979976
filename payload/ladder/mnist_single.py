#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Train a small network on MNIST in one process, on the GPU if there is one.

The rung below is the notebook mnist.ipynb, with the same lines in cells; the rung above is mnist_multi.py.
"""

import math
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the directory of training/
from training import TrainingError
from training.accelerator import find_accelerator
from training.checkpoint import Run, open_checkpoints
from training.data import fingerprint, load_dataset, normalise
from training.distributed import World, select_device
from training.finite import check_loss
from training.model import build_model
from training.options import parse_rung
from training.profiling import Profile


def train_epoch(model, optimizer, schedule, images, labels, batches):
    """Take one step for each batch of indices; return the mean loss over all images."""
    loss_sum = torch.zeros(1, device=images.device)
    for batch in batches:
        scores = model(images[batch])
        loss = F.cross_entropy(scores, labels[batch], reduction="sum")
        optimizer.zero_grad()
        (loss / len(batch)).backward()
        optimizer.step()
        schedule.step()
        loss_sum += loss.detach()  # no .item(): that would wait for the GPU
    return loss_sum.item() / len(labels)


@torch.no_grad()
def evaluate(model, images, labels):
    """Return the percentage of images that are classified correctly."""
    correct = torch.zeros(1, device=images.device)
    for batch in torch.arange(len(labels), device=images.device).split(1000):
        correct += (model(images[batch]).argmax(dim=1) == labels[batch]).sum()
    return 100 * correct.item() / len(labels)


def train(options):
    """Run the training."""
    device = select_device(options.gpu, local_rank=0)
    data = load_dataset(options.data, options.download)
    print(f"device {device}, torch {torch.__version__}, data {data.source}")

    # All images fit in memory, so they are loaded at once.
    images, labels = normalise(data.train_images, device), data.train_labels.to(device)
    test_images, test_labels = normalise(data.test_images, device), data.test_labels.to(device)

    torch.manual_seed(options.seed)
    model = build_model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    steps = options.epochs * math.ceil(len(labels) / options.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=options.lr, total_steps=steps)
    shuffle = torch.Generator().manual_seed(options.seed)

    settings = {"epochs": options.epochs, "batch size": options.batch_size, "lr": options.lr, "seed": options.seed}
    run = Run(model, optimizer, schedule, settings, World(0, 1, device), data=fingerprint(data))
    checkpoints = open_checkpoints(options, run.world)
    if file := run.resume(checkpoints):
        print(f"resuming after {run.position.epoch} epochs, from {file}")

    profile = Profile(options, run.world)
    for epoch in range(1, options.epochs + 1):
        name, start = f"epoch {epoch}/{options.epochs}", time.perf_counter()
        batches = torch.randperm(len(labels), generator=shuffle).to(device).split(options.batch_size)
        if epoch <= run.position.epoch:
            continue  # trained by an earlier start
        loss = train_epoch(model, optimizer, schedule, images, labels, profile.batches(batches))
        speed = len(labels) / (time.perf_counter() - start)
        check_loss(loss, name)
        accuracy = evaluate(model, test_images, test_labels)
        print(f"{name}  loss {loss:.4f}  test accuracy {accuracy:.2f} %  images/s {speed:.0f}", flush=True)
        run.position.end_epoch(accuracy)
        run.save(checkpoints)
    print(f"test accuracy: {run.position.accuracy:.2f} %")


if __name__ == "__main__":
    options = parse_rung(__doc__.splitlines()[0], gpu=find_accelerator() is not None)
    try:
        train(options)
    except TrainingError as error:
        sys.exit(f"mnist_single.py: {error}")
