#!/usr/bin/env python3
"""Train a small network on MNIST with DistributedDataParallel, on any number of ranks.

Run it alone (`python mnist_ddp.py`), or once per rank under srun, torchrun or mpirun. It reads
torch's standard variables only: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT.
The result is the same for any number of ranks, to rounding, and after any number of interruptions.
"""

# ruff: noqa: E402 (the command line is read before torch is imported: --help answers at once)
from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice

from training.options import parse_arguments
from training.signals import INTERRUPTED, end_at_once

if __name__ == "__main__":
    OPTIONS = parse_arguments(sys.argv[1:], __doc__.splitlines()[0])
    end_at_once(resumable=bool(OPTIONS.modelpath))

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, default_collate
from training import TrainingError
from training.checkpoint import Checkpoints, Run, save_model
from training.data import GlobalBatchSampler, fingerprint, hold_out, load_dataset, normalise
from training.distributed import World, fail_together, process_group, sum_over_ranks
from training.metrics import Metrics
from training.network import build_model
from training.progress import Progress
from training.resuming import Extent
from training.stopping import StopSignals


def learning_rate_factor(step: int, steps: int, rise: int | None = None) -> float:
    """Return the share of the peak learning rate: up during ``rise`` steps, then down to 0.

    By default it rises during a quarter of the steps.
    """
    rise = steps // 4 if rise is None else rise
    return min((step + 1) / (rise + 1), (steps - step) / (steps - rise))


def device_batches(images: Tensor, labels: Tensor, batches: Iterable) -> Iterator:
    """Yield this rank's images and labels of each batch, and how many samples all ranks have."""
    for indices, batch_size in batches:
        yield images.index_select(0, indices), labels.index_select(0, indices), batch_size


def plain_batches(images: Tensor, labels: Tensor, batches: Iterable) -> Iterator:
    """Yield the same as ``device_batches``, image by image as textbooks do."""
    batches = list(batches)
    nothing = images[:0], labels[:0]  # a batch of fewer samples than ranks leaves some without
    loader = DataLoader(
        TensorDataset(images, labels),
        batch_sampler=[indices.tolist() for indices, _ in batches],
        collate_fn=lambda samples: default_collate(samples) if samples else nothing,
    )
    for (own_images, own_labels), (_, batch_size) in zip(loader, batches):
        yield own_images, own_labels, batch_size


def sum_of_losses(model: nn.Module, images: Tensor, labels: Tensor, bf16: bool) -> Tensor:
    """Return the sum of the samples' losses, computed in bfloat16 where autocast does if ``bf16``."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=bf16):
        scores = model(images)
    return F.cross_entropy(scores.float() if bf16 else scores, labels, reduction="sum")


def warm_up(model: nn.Module, images: Tensor, labels: Tensor, bf16: bool) -> None:
    """Load libraries and compile, by a step that changes nothing: seconds that are no training."""
    sum_of_losses(model, images, labels, bf16).backward()
    model.zero_grad()
    if images.is_cuda:
        torch.cuda.synchronize()


def compiler_fault(error: Exception) -> TrainingError | None:
    """Return a fault of torch.compile in one sentence; None for other faults."""
    if not type(error).__module__.startswith(("torch._inductor", "torch._dynamo")):
        return None
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return TrainingError(
        f"--compile: the network cannot be compiled ({first.rstrip(' .:')}). Put a C++ compiler on PATH or name "
        "one with CXX (on GPUs: Triton and a C compiler), or leave --compile out"
    )


def train_epoch(
    model: nn.Module, run: Run, batches: Iterable, progress: Progress, stop: StopSignals,
    *, bf16: bool = False,
) -> None:  # fmt: skip
    """Take one step per batch; count them, and the loss of all samples, in ``run.position``.

    Ends before the last batch where the ranks agree to stop.
    """
    position, world = run.position, run.world
    start = time.perf_counter()
    loss_sum = torch.zeros(1, dtype=torch.float64, device=world.device)
    loss_sum += position.loss_sum / world.size  # of the steps before an interruption

    def mean_loss() -> float:
        """Return that of this rank's samples: the other ranks are not at the same step."""
        return loss_sum.item() * world.size / position.samples

    for images, labels, batch_size in batches:
        loss = sum_of_losses(model, images, labels, bf16)
        run.optimizer.zero_grad()
        # DistributedDataParallel takes the mean of the ranks' gradients. Scaled like this, that is
        # the gradient of the mean over the global batch, also where the shares differ in size.
        (loss * world.size / batch_size).backward()
        run.optimizer.step()
        run.schedule.step()
        loss_sum.add_(loss.detach())
        position.step += 1
        position.samples += batch_size
        progress.update(position.step, mean_loss)
        if stop.agreed():
            break
    # Reading the sum waits for the device and for all ranks, so the clock may stop.
    position.loss_sum = sum_over_ranks(loss_sum)[0]
    seconds = time.perf_counter() - start
    position.seconds += seconds
    position.epoch_seconds += seconds


@torch.no_grad()
def evaluate(network: nn.Module, images: Tensor, labels: Tensor, world: World) -> tuple[int, int]:
    """Return how many images are classified correctly and how many there are, each seen once."""
    tally = torch.zeros(2, dtype=torch.int64, device=labels.device)
    images, labels = images[world.rank :: world.size], labels[world.rank :: world.size]
    for batch, truth in zip(images.split(1000), labels.split(1000)):
        tally[0] += (network(batch).argmax(dim=1) == truth).sum()
        tally[1] += len(truth)
    return tuple(sum_over_ranks(tally))


def set_up(
    options: argparse.Namespace, samples: int, world: World
) -> tuple[Run, GlobalBatchSampler]:
    """Return the network with what trains it, at the beginning, and the order of the samples."""
    torch.manual_seed(options.seed)
    torch.backends.cudnn.deterministic = True  # the same run again gives the same weights
    batch_size, lr = options.batch_size, options.lr
    if options.batch_per_rank:
        batch_size = options.batch_per_rank * world.size
    if options.scale_lr:
        lr *= world.size
    # On a CPU the convolutions are a third faster with the channels last.
    network = build_model().to(world.device, memory_format=torch.channels_last)
    sampler = GlobalBatchSampler(
        samples, batch_size,
        rank=world.rank, world_size=world.size, seed=options.seed, device=world.device,
    )  # fmt: skip
    steps = options.epochs * len(sampler)
    rise = steps // 4
    if options.warmup is not None:
        rise = min(round(options.warmup * len(sampler)), steps - 1)  # the last step is on the way down
    fused = options.gpu or torch.__version__ >= "2.4"  # on CPUs since 2.4
    optimizer = torch.optim.Adam(network.parameters(), lr=lr, fused=fused)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, steps, rise)
    )
    settings = {
        "epochs": options.epochs, "batch size": batch_size, "learning rate": lr,
        "warm-up": options.warmup, "seed": options.seed, "bf16": options.bf16,
        "training images": samples, "validation": options.validation,
    }  # fmt: skip
    extent = Extent(options.epochs, len(sampler), samples)
    return Run(network, optimizer, schedule, settings, world, extent=extent), sampler


def train(options: argparse.Namespace, world: World, stop: StopSignals) -> None:
    """Train on this rank, from where the last start left --modelpath; rank 0 prints and writes."""
    first = world.rank == 0
    report = partial(print, flush=True) if first else lambda _line: None
    checkpoints = None
    with fail_together(world):
        data = load_dataset(options.data, options.download)
        if options.modelpath:
            checkpoints = Checkpoints(options.modelpath / "checkpoints", options.keep)
            if first:
                checkpoints.prepare(restart=options.restart)
    report(
        f"world size {world.size}, backend {torch.distributed.get_backend()}, "
        f"device {world.device}, torch {torch.__version__}, data {data.source}: "
        f"{len(data.train_labels)} training and {len(data.test_labels)} test images"
    )
    if options.data is None:
        report("neither --data nor MNIST_ROOT names the MNIST files: the digits set is drawn here")
    if world.device.type == "cpu" and torch.cuda.is_available():
        report("a GPU is here and not used: --gpu")
    training = normalise(data.train_images, world.device), data.train_labels.to(world.device)
    test = normalise(data.test_images, world.device), data.test_labels.to(world.device)
    judges, of_judges = test, "test accuracy"  # the images that tell which epoch was best
    if options.validation:
        with fail_together(world):
            training, judges = hold_out(*training, options.validation, options.seed)
        of_judges = "validation accuracy"
        report(f"{len(judges[1])} of the training images are held out for validation")

    run, sampler = set_up(options, len(training[1]), world)
    if checkpoints and first:
        run.data = fingerprint(data)
    batches_of = plain_batches if options.plain else device_batches
    file = run.resume(checkpoints) if checkpoints else None
    position = run.position
    if file:
        report(f"going on after {position.epoch} epochs and {position.step} steps, from {file}")

    def accuracy(images: Tensor, labels: Tensor) -> float:
        correct, total = evaluate(run.network, images, labels, world)
        return 100 * correct / total

    network = torch.compile(run.network) if options.compile else run.network
    nothing_left = position.epoch == options.epochs
    if nothing_left:
        report("nothing is left to train")
    elif world.device.type == "cuda" or options.compile or file:
        share = max(1, sampler.batch_size // world.size)
        with fail_together(world):
            try:
                warm_up(network, training[0][:share], training[1][:share], options.bf16)
            except Exception as error:
                raise compiler_fault(error) or error from None
    model = DistributedDataParallel(network)
    with fail_together(world):
        metrics = Metrics(
            options.modelpath, options=vars(options), first_epoch=position.epoch,
            tensorboard=options.tensorboard, wandb=options.wandb,
        ) if first else nullcontext()  # fmt: skip
    with metrics:
        while position.epoch < options.epochs:
            name = f"epoch {position.epoch + 1}/{options.epochs}"
            sampler.set_epoch(position.epoch)
            batches = batches_of(*training, islice(sampler, position.step, None))
            before = replace(position)
            progress = Progress(name, len(sampler), first_step=position.step, enabled=first)
            with progress:
                train_epoch(model, run, batches, progress, stop, bf16=options.bf16)
            if position.step == len(sampler):
                seconds = position.epoch_seconds
                # A checkpoint of an older version does not tell how long the steps before it took.
                uncounted = 0 if before.epoch_seconds else before.samples
                speed = (position.samples - uncounted) / seconds
                loss = position.loss_sum / position.samples
                position.end_epoch(accuracy(*judges))
                report(
                    f"{name}  loss {loss:.4f}  {of_judges} {position.accuracy:.2f} %  "
                    f"images/s {speed:.0f}"
                )
                with fail_together(world):
                    if first:
                        metrics.epoch(
                            position.epoch, loss=loss, accuracy=position.accuracy, seconds=seconds,
                            images_per_second=speed, world_size=world.size,
                            learning_rate=run.optimizer.param_groups[0]["lr"],
                        )  # fmt: skip
            if checkpoints:
                file = run.save(checkpoints)
            if position.epoch < options.epochs and stop.agreed(now=True):
                report(
                    f"{stop.name}: stopped after {position.epoch} epochs and {position.step} steps, "
                    f"saved in {file}; the same command goes on from there"
                )
                raise SystemExit(stop.status)

        measured = position.accuracy if judges is test and not nothing_left else accuracy(*test)
        if options.modelpath and first:  # before the metrics end: no fault of theirs costs the model
            save_model(run.network.state_dict(), options.modelpath / "mnist_ddp.pt")

    report(f"test accuracy: {measured:.2f} %")
    if not nothing_left:  # it would be that of another day
        report(f"training time: {position.seconds:.1f} s")
    if options.modelpath:
        report(f"model written to {options.modelpath / 'mnist_ddp.pt'}")


def main(options: argparse.Namespace) -> None:
    """Train, or end with status 1 and one last line that names the rank and its fault."""
    try:
        with process_group(
            os.environ, use_gpu=options.gpu, timeout=options.timeout
        ) as world, StopSignals(world, enabled=bool(options.modelpath)) as stop:
            train(options, world, stop)
        return
    except KeyboardInterrupt:
        print(f"rank {os.environ.get('RANK', '0')}: interrupted, nothing was saved", file=sys.stderr, flush=True)
        sys.exit(INTERRUPTED)
    except TrainingError as error:
        fault = str(error)
    except Exception as error:
        traceback.print_exc()
        fault = f"{type(error).__name__}: {error}"
    sys.exit(f"rank {os.environ.get('RANK', '0')}: {fault}")


if __name__ == "__main__":
    main(OPTIONS)
