#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Train a small network on MNIST on any number of ranks, each on a GPU if there is one.

It needs nothing but PyTorch. A launcher starts it once per rank, and sets torch's variables (RANK, WORLD_SIZE, ...).
mnist_single.py is the same program for one process: `diff` shows what each rank does.
"""

import argparse
import gzip
import math
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def read_idx(path):
    """Return the content of an IDX file of bytes, plain or compressed, as uint8 of its shape."""
    # 0, 0, 8 (bytes), the number of dimensions; the size of each as 4 bytes, the highest first; then the values
    with path.open("rb") if path.exists() else gzip.open(f"{path}.gz") as file:
        dimensions = file.read(4)[3]
        shape = [int.from_bytes(file.read(4), "big") for _ in range(dimensions)]
        content = file.read(math.prod(shape) + 1)  # one more shows that there is more
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(shape)


# The digits 0 to 9, each 5 pixels wide and 7 high
GLYPHS = """
.###...#...###.#####...#.#####..##.#####.###..###.
#...#.##..#...#...#...##.#.....#.......##...##...#
#..##..#......#..#...#.#.####.#.......#.#...##...#
#.#.#..#....##....#.#..#.....#####...#...###..####
##..#..#...#.......######....##...#.#...#...#....#
#...#..#..#....#...#...#.#...##...#.#...#...#...#.
.###..###.#####.###....#..###..###..#....###..##..
"""


def generate_digits(count):
    """Return noisy images of digits at random places, uint8 [count, 28, 28], and their labels."""
    rows = [[pixel == "#" for pixel in row] for row in GLYPHS.split()]
    small = torch.tensor(rows).view(7, 10, 5).transpose(0, 1)
    glyphs = small.repeat_interleave(3, dim=1).repeat_interleave(3, dim=2)  # [10, 21, 15]
    torch.manual_seed(count)
    labels = torch.randint(10, (count,))
    images = torch.randint(50, (count, 28, 28))
    for image, label in zip(images, labels):
        top, left = torch.randint(7, (2,)).tolist()
        image[top : top + 21, left : left + 15] += 205 * glyphs[label]
    return images.to(torch.uint8), labels


def load_mnist(directory, part, count):
    """Return a part of MNIST, "train" or "t10k"; without a directory, ``count`` generated digits.

    Images are float32 [n, 1, 28, 28] with mean 0 and standard deviation 1, labels int64 [n].
    """
    if directory:
        images = read_idx(directory / f"{part}-images-idx3-ubyte")
        labels = read_idx(directory / f"{part}-labels-idx1-ubyte")
    else:
        images, labels = generate_digits(count)
    pixels = images.unsqueeze(1).float() / 255
    return TensorDataset((pixels - 0.1307) / 0.3081, labels.long())


def build_model():
    """Return a network from images [n, 1, 28, 28] to the scores [n, 10] of the digits."""
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=6, stride=2),  # [n, 32, 12, 12]
        nn.ReLU(),
        nn.MaxPool2d(2),  # [n, 32, 6, 6]
        nn.Conv2d(32, 64, kernel_size=3),  # [n, 64, 4, 4]
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1024, 10),
    )


def train_epoch(model, loader, optimizer, schedule, device):
    """Take one step for each batch; return the mean loss over all images."""
    model.train()
    loss_sum = torch.zeros((), device=device)
    for images, labels in loader:
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        loss_sum += loss.detach() * len(labels)  # no .item() here: it would wait for the GPU
    dist.all_reduce(loss_sum)  # the sum over all ranks
    return loss_sum.item() / loader.sampler.total_size


@torch.no_grad()
def evaluate(model, loader, device):
    """Return the percentage of images that are classified correctly."""
    model.eval()
    correct = torch.zeros((), device=device)
    for images, labels in loader:
        correct += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum()
    dist.all_reduce(correct)
    return 100 * correct.item() / len(loader.dataset)


def save(checkpoint, parts, epoch, settings):
    """Write the states of the parts after an epoch; a job that is killed meanwhile keeps the file before."""
    states = {name: part.state_dict() for name, part in parts.items()}
    new = checkpoint.with_suffix(".tmp")
    torch.save({**states, "epoch": epoch, "settings": settings}, new)
    new.replace(checkpoint)


def resume(checkpoint, parts, settings):
    """Load the states of the parts, if there is a checkpoint; return the number of epochs that it has."""
    if not checkpoint.exists():
        return 0
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
    if saved["settings"] != settings:
        sys.exit(f"{checkpoint}: written with {saved['settings']}. Use these options, or another --modelpath")
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    return saved["epoch"]


def train(options):
    """Train, from the checkpoint in --modelpath if there is one."""
    rank = dist.get_rank()
    size = dist.get_world_size()
    kind = "CPU"
    device = torch.device("cpu")
    if torch.cuda.is_available():  # AMD's GPUs are "cuda" too
        kind = "GPU"
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    data = options.data or "generated digits"
    if rank == 0:  # one rank prints
        print(f"world size {size}, device {device}, torch {torch.__version__}, data {data}")
    if options.batch_size % size:
        sys.exit(f"--batch-size {options.batch_size}: not a multiple of {size} ranks. Use another one")
    share = options.batch_size // size  # each rank takes its share of a batch

    train_set = load_mnist(options.data, "train", 6000)
    test_set = load_mnist(options.data, "t10k", 1000)
    order = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, share, sampler=order)
    # A DistributedSampler repeats images where the ranks do not divide their number: they would count twice
    test_loader = DataLoader(test_set, 1000, sampler=range(rank, len(test_set), size))

    torch.manual_seed(0)
    model = DistributedDataParallel(build_model().to(device))  # backward() averages the gradients of the ranks
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(train_loader))

    parts = {"model": model.module, "optimizer": optimizer, "schedule": schedule}
    settings = {"epochs": options.epochs, "batch size": options.batch_size, "lr": options.lr, "images": len(train_set)}
    done = 0  # epochs
    if options.modelpath:
        options.modelpath.mkdir(parents=True, exist_ok=True)
        done = resume(options.modelpath / "checkpoint.pt", parts, settings)
    if rank == 0 and done:
        print(f"resuming after {done} epochs")

    for epoch in range(done + 1, options.epochs + 1):
        order.set_epoch(epoch)  # each epoch has its own order, the same on all ranks, also after a restart
        print(f"[{kind}{rank}] Epoch {epoch} | Batchsize: {share} | Steps: {len(train_loader)}", flush=True)
        start = time.perf_counter()
        loss = train_epoch(model, train_loader, optimizer, schedule, device)
        speed = len(train_set) / (time.perf_counter() - start)
        accuracy = evaluate(model.module, test_loader, device)
        name = f"epoch {epoch}/{options.epochs}"
        if rank == 0:
            print(f"{name}  loss {loss:.4f}  test accuracy {accuracy:.2f} %  images/s {speed:.0f}", flush=True)
        if rank == 0 and options.modelpath:
            save(options.modelpath / "checkpoint.pt", parts, epoch, settings)
    accuracy = evaluate(model.module, test_loader, device)
    if rank == 0:
        print(f"test accuracy: {accuracy:.2f} %")


def parse_arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("MNIST_ROOT") or None,  # set by the module MNIST
        help="directory of the MNIST files (default: $MNIST_ROOT)",
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--modelpath", type=Path, help="write a checkpoint to this directory, and resume from it")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse_arguments(__doc__.splitlines()[0])
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    train(arguments)
    dist.destroy_process_group()
    time.sleep(0.1)  # gloo's threads end: a rank on CPUs may abort otherwise
