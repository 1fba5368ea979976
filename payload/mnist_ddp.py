#!/usr/bin/env python3
"""Train a small network on MNIST with DistributedDataParallel, on any number of ranks.

Run it alone (`python mnist_ddp.py`), or once per rank under srun, torchrun or mpirun. It reads
torch's standard variables only: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT.
The result is the same for any number of ranks, to rounding.
"""

# ruff: noqa: E402 (the command line is read before torch is imported: --help answers at once)
from __future__ import annotations

import argparse
import math
import os
import sys
import time
import traceback
from pathlib import Path


class OneLineParser(argparse.ArgumentParser):
    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = OneLineParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--gpu", action="store_true", help="one GPU per rank, with NCCL (default: CPU, with gloo)")
    add("--modelpath", type=Path, metavar="DIR", help="write the model to DIR/mnist_ddp.pt")
    add("--epochs", type=int, default=3, help="(default: %(default)s)")
    add("--batch-size", type=int, default=256, metavar="SAMPLES",
        help="in one step, over all ranks (default: %(default)s)")  # fmt: skip
    add("--lr", type=float, default=0.01, help="peak learning rate (default: %(default)s)")
    add("--seed", type=int, default=0, help="of weights and order (default: %(default)s)")
    add("--data", type=Path, metavar="DIR", default=os.environ.get("MNIST_ROOT") or None,
        help="the MNIST files (default: $MNIST_ROOT, else a drawn digits set)")  # fmt: skip
    add("--timeout", type=float, default=300, metavar="SECONDS",
        help="to wait for another rank before giving up (default: %(default)s)")  # fmt: skip
    options = parser.parse_args(arguments)
    for name in ("epochs", "batch_size", "lr", "timeout"):
        value = getattr(options, name)
        if not 0 < value < math.inf:
            parser.error(f"--{name.replace('_', '-')} must be finite and above 0, found {value}")
    if not 0 <= options.seed < 2**32:
        parser.error(f"--seed must be from 0 to 2^32 - 1, found {options.seed}")
    return options


if __name__ == "__main__":
    OPTIONS = parse_arguments(sys.argv[1:])

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from training import TrainingError
from training.checkpoint import make_directory, save_model
from training.data import GlobalBatchSampler, load_dataset, normalise
from training.distributed import World, fail_together, process_group, sum_over_ranks

PROGRESS_SECONDS = 10


def build_model() -> nn.Module:
    """Return a network from float32 images [n, 1, 28, 28] to the scores [n, 10] of the digits.

    No dropout and no batch normalisation: random masks and batch statistics are a rank's own,
    and with them the result would depend on the number of ranks.
    """
    return nn.Sequential(
        nn.Conv2d(1, 10, kernel_size=5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(10, 20, kernel_size=5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(),
        nn.Linear(320, 50), nn.ReLU(),
        nn.Linear(50, 10),
    )  # fmt: skip


def learning_rate_factor(step: int, steps: int) -> float:
    """Return the share of the peak learning rate: up during a quarter of the steps, then to 0."""
    rise = steps // 4
    return min((step + 1) / (rise + 1), (steps - step) / (steps - rise))


def train_epoch(model, optimizer, schedule, images, labels, sampler, world: World, name: str):
    """Take one step per global batch; return the mean loss over all samples of all ranks."""
    loss_sum = torch.zeros(1, dtype=torch.float64, device=images.device)
    samples = 0
    next_report = time.perf_counter() + PROGRESS_SECONDS
    for step, (indices, batch_size) in enumerate(sampler, start=1):
        scores = model(images.index_select(0, indices))
        loss = F.cross_entropy(scores, labels.index_select(0, indices), reduction="sum")
        optimizer.zero_grad()
        # DistributedDataParallel takes the mean of the ranks' gradients. Scaled like this, that is
        # the gradient of the mean over the global batch, also where the shares differ in size.
        (loss * world.size / batch_size).backward()
        optimizer.step()
        schedule.step()
        loss_sum += loss.detach()
        samples += len(indices)
        if world.rank == 0 and time.perf_counter() >= next_report:
            # This rank's share of the loss: the others are not at the same step.
            mean = loss_sum.item() / samples
            print(f"{name}  {100 * step // len(sampler)} %  loss {mean:.4f} (rank 0)", flush=True)
            next_report = time.perf_counter() + PROGRESS_SECONDS
    return sum_over_ranks(loss_sum)[0] / sampler.sample_count


@torch.no_grad()
def evaluate(network: nn.Module, images: Tensor, labels: Tensor, world: World) -> tuple[int, int]:
    """Return how many images are classified correctly and how many there are, each seen once."""
    tally = torch.zeros(2, dtype=torch.int64, device=labels.device)
    images, labels = images[world.rank :: world.size], labels[world.rank :: world.size]
    for batch, truth in zip(images.split(1000), labels.split(1000)):
        tally[0] += (network(batch).argmax(dim=1) == truth).sum()
        tally[1] += len(truth)
    return tuple(sum_over_ranks(tally))


def train(options: argparse.Namespace, world: World) -> None:
    """Run the whole training on this rank; rank 0 prints and writes."""
    device = world.device

    def report(line: str) -> None:
        if world.rank == 0:
            print(line, flush=True)

    with fail_together(world):
        data = load_dataset(options.data)
        if options.modelpath and world.rank == 0:
            make_directory(options.modelpath)
    report(
        f"world size {world.size}, backend {torch.distributed.get_backend()}, device {device}, "
        f"torch {torch.__version__}, data {data.source}: {len(data.train_labels)} training and "
        f"{len(data.test_labels)} test images"
    )
    if options.data is None:
        report("neither --data nor MNIST_ROOT names the MNIST files: the digits set is drawn here")
    images, labels = normalise(data.train_images, device), data.train_labels.to(device)

    torch.manual_seed(options.seed)
    torch.backends.cudnn.deterministic = True  # the same run again gives the same weights
    # On a CPU the convolutions are a third faster with the channels last.
    network = build_model().to(device, memory_format=torch.channels_last)
    model = DistributedDataParallel(network)
    sampler = GlobalBatchSampler(
        len(labels), options.batch_size,
        rank=world.rank, world_size=world.size, seed=options.seed, device=device,
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    steps = options.epochs * len(sampler)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, steps)
    )

    training_seconds = 0.0
    for epoch in range(options.epochs):
        name = f"epoch {epoch + 1}/{options.epochs}"
        start = time.perf_counter()
        sampler.set_epoch(epoch)
        # Reading the epoch's loss waits for the device and for all ranks, so the clock may stop.
        loss = train_epoch(model, optimizer, schedule, images, labels, sampler, world, name)
        seconds = time.perf_counter() - start
        training_seconds += seconds
        report(f"{name}  loss {loss:.4f}  images/s {len(labels) / seconds:.0f}")

    images, labels = normalise(data.test_images, device), data.test_labels.to(device)
    correct, total = evaluate(network, images, labels, world)
    report(f"test accuracy: {100 * correct / total:.2f} %")
    report(f"training time: {training_seconds:.1f} s")
    if options.modelpath and world.rank == 0:
        path = options.modelpath / "mnist_ddp.pt"
        save_model(network.state_dict(), path)
        report(f"model written to {path}")


def main(options: argparse.Namespace) -> None:
    """Train, or end with status 1 and one last line that names the rank and its fault."""
    try:
        with process_group(os.environ, use_gpu=options.gpu, timeout=options.timeout) as world:
            train(options, world)
        return
    except TrainingError as error:
        fault = str(error)
    except Exception as error:
        traceback.print_exc()
        fault = f"{type(error).__name__}: {error}"
    sys.exit(f"rank {os.environ.get('RANK', '0')}: {fault}")


if __name__ == "__main__":
    main(OPTIONS)
