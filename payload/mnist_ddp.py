#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Train a small network on MNIST with DistributedDataParallel, on any number of ranks.

Run it alone (`python mnist_ddp.py`), or once per rank under srun, torchrun or mpirun. It reads
torch's standard variables only: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT.
The result is the same, to rounding, for any number of ranks and any number of interruptions.
"""

# ruff: noqa: E402 (the command line is parsed before torch is imported: --help answers at once)
from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from training.options import parse_arguments
from training.signals import end_at_once

if __name__ == "__main__":
    OPTIONS = parse_arguments(sys.argv[1:], __doc__.splitlines()[0])
    end_at_once(resumable=bool(OPTIONS.modelpath))

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from training import TrainingError
from training.checkpoint import Checkpoints, Run, open_checkpoints, save_model
from training.data import Dataset, GlobalBatchSampler, Splits, device_batches, fingerprint, load_dataset, split
from training.distributed import World, fail_together, sum_over_ranks
from training.failing import run_training
from training.finite import check_loss
from training.health import Health
from training.metrics import Metrics
from training.model import build_model
from training.profiling import Profile
from training.progress import Progress, report_world, reporter
from training.schedule import learning_rate_factor
from training.stopping import StopSignals


def load_data(directory: Path | None) -> Dataset:
    """Return MNIST from the IDX files in ``directory``; without one, the generated digits of mnist_single.py."""
    if directory:
        return load_dataset(directory)
    try:
        from ladder.mnist_single import generate_digits
    except ImportError:
        raise TrainingError("no data. Name them with --data, or copy ladder/ too, which generates digits") from None
    return Dataset._make([*generate_digits(6000), *generate_digits(1000), "generated digits"])


def sum_of_losses(model: nn.Module, images: Tensor, labels: Tensor, bf16: bool) -> Tensor:
    """Return the sum of the samples' losses; with ``bf16``, autocast computes in bfloat16 where it can."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=bf16):
        scores = model(images)
    return F.cross_entropy(scores.float() if bf16 else scores, labels, reduction="sum")


def train_epoch(
    model: nn.Module,
    run: Run,
    batches: Iterable,
    progress: Progress,
    stop: StopSignals,
    bf16: bool = False,
) -> None:
    """Take one step per batch; add the steps, and the loss over all ranks, to ``run.position``.

    Returns before the last batch if the ranks agree to stop.
    """
    position = run.position
    world = run.world
    start = time.perf_counter()
    loss_sum = torch.zeros(1, dtype=torch.float64, device=world.device)
    loss_sum += position.loss_sum / world.size  # of the steps before an interruption

    for images, labels, batch_size in batches:
        loss = sum_of_losses(model, images, labels, bf16)
        run.optimizer.zero_grad()
        # DistributedDataParallel averages the gradients of the ranks. With this scale the average is
        # the gradient of the mean loss over the global batch, even if the ranks' shares differ in size.
        (loss * world.size / batch_size).backward()
        run.optimizer.step()
        run.schedule.step()
        loss_sum.add_(loss.detach())
        position.step += 1
        position.samples += batch_size
        # the mean over this rank's samples: the other ranks may be at another step
        progress.update(position.step, lambda: loss_sum.item() * world.size / position.samples)
        if stop.agreed():
            break
    # Reading the sum waits for the device and for all ranks, so the clock may stop after it.
    position.loss_sum = sum_over_ranks(loss_sum)[0]
    seconds = time.perf_counter() - start
    position.seconds += seconds
    position.epoch_seconds += seconds


@torch.no_grad()
def accuracy(run: Run, images: Tensor, labels: Tensor) -> float:
    """Return the percentage of images that the network classifies correctly; each image counts once."""
    world = run.world
    correct = torch.zeros(1, dtype=torch.int64, device=labels.device)
    for indices in torch.arange(world.rank, len(labels), world.size, device=labels.device).split(1000):
        correct += (run.network(images[indices]).argmax(dim=1) == labels[indices]).sum()
    return 100 * sum_over_ranks(correct)[0] / len(labels)


def set_up(options: argparse.Namespace, samples: int, world: World) -> tuple[Run, GlobalBatchSampler]:
    """Return the network, at its first step, with what trains it; and the sampler that orders the samples."""
    torch.manual_seed(options.seed)
    torch.backends.cudnn.deterministic = True  # the same command gives the same weights
    batch_size = options.batch_size
    if options.batch_per_rank:
        batch_size = options.batch_per_rank * world.size
    # On a CPU, convolutions are a third faster with the channels last.
    network = build_model().to(world.device, memory_format=torch.channels_last)
    sampler = GlobalBatchSampler(samples, batch_size, world, options.seed)
    steps = options.epochs * len(sampler)
    rise = steps // 4
    if options.warmup is not None:
        rise = min(round(options.warmup * len(sampler)), steps - 1)  # the last step is on the way down
    fused = options.gpu or torch.__version__ >= "2.4"  # on CPUs since 2.4
    optimizer = torch.optim.Adam(network.parameters(), lr=options.lr, fused=fused)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, steps, rise))
    settings = {
        "epochs": options.epochs,
        "batch size": batch_size,
        "learning rate": options.lr,
        "warm-up": options.warmup,
        "seed": options.seed,
        "bf16": options.bf16,
        "training images": samples,
        "validation": options.validation,
    }
    limits = {"epoch": options.epochs, "step": len(sampler) - 1, "samples": samples}
    return Run(network, optimizer, schedule, settings, world, limits), sampler


class Training(NamedTuple):
    """What the epochs of a training share."""

    options: argparse.Namespace
    run: Run
    sampler: GlobalBatchSampler
    images: Splits
    checkpoints: Checkpoints | None
    metrics: Metrics
    stop: StopSignals
    report: Callable


def train(options: argparse.Namespace, world: World, stop: StopSignals) -> None:
    """Train on this rank, from where the last start left --modelpath; only rank 0 prints and writes."""
    report = reporter(world)
    with fail_together(world):
        data = load_data(options.data)
    checkpoints = open_checkpoints(options, world)
    counts = f"{len(data.train_labels)} training and {len(data.test_labels)} test images"
    report_world(world, report, f"data {data.source}: {counts}")
    images = split(data, world.device, options.validation, options.seed)

    run, sampler = set_up(options, len(images.training[1]), world)
    if checkpoints and world.rank == 0:
        run.data = fingerprint(data)
    file = run.resume(checkpoints)
    position = run.position
    if file:
        report(f"resuming after {position.epoch} epochs and {position.step} steps, from {file}")
    with fail_together(world):
        directory = None if world.rank else options.modelpath  # rank 0 writes
        metrics = Metrics(directory, options=vars(options), first_epoch=position.epoch)
    with metrics:
        train_epochs(Training(options, run, sampler, images, checkpoints, metrics, stop, report))
        report(f"test accuracy: {accuracy(run, *images.test):.2f} %")
        report(f"training time: {position.seconds:.1f} s")
        if options.modelpath and world.rank == 0:
            path = options.modelpath / "mnist_ddp.pt"
            save_model(run.network.state_dict(), path)
            report(f"model written to {path}")


def train_epochs(training: Training) -> None:
    """Train the epochs that are left, with a checkpoint after each; exit if the ranks agree to stop."""
    options = training.options
    run = training.run
    position = run.position
    stop = training.stop
    model = DistributedDataParallel(torch.compile(run.network) if options.compile else run.network)
    health = Health(run.world, training.report, enabled=options.health)
    health.watch(model)
    profile = Profile(options, run.world, training.report)
    while position.epoch < options.epochs:
        name = f"epoch {position.epoch + 1}/{options.epochs}"
        steps = len(training.sampler)
        training.sampler.epoch = position.epoch
        batches = device_batches(*training.images.training, islice(training.sampler, position.step, None))
        batches = profile.batches(health.batches(batches))
        progress = Progress(name, steps, enabled=run.world.rank == 0)
        train_epoch(model, run, batches, progress, stop, options.bf16)
        loss_sum = position.loss_sum
        if position.step == steps:
            end_epoch(training, name, health)
        check_loss(loss_sum, name, run.world)
        file = run.save(training.checkpoints)
        if position.epoch < options.epochs and stop.agreed(now=True):
            stop.leave(training.report, f"{position.epoch} epochs and {position.step} steps", file)


def end_epoch(training: Training, name: str, health: Health) -> None:
    """Validate, report and record an epoch, and move to the start of the next."""
    run = training.run
    position = run.position
    values = {
        "loss": position.loss_sum / position.samples,
        "accuracy": accuracy(run, *training.images.selection),
        "images_per_second": position.samples / position.epoch_seconds,
        "seconds": position.epoch_seconds,
        "world_size": run.world.size,
        "learning_rate": run.optimizer.param_groups[0]["lr"],
    }
    position.end_epoch(values["accuracy"])
    kind = "validation" if training.options.validation else "test"
    training.report(
        f"{name}  loss {values['loss']:.4f}  {kind} accuracy {values['accuracy']:.2f} %  "
        f"images/s {values['images_per_second']:.0f}"
    )
    values.update(health.end_epoch(name))
    with fail_together(run.world):
        training.metrics.epoch(position.epoch, **values)


if __name__ == "__main__":
    run_training(train, OPTIONS)
