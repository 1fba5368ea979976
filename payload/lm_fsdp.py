#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Train a GPT on bytes with its parameters divided among the ranks (FSDP2), on any number of ranks.

Run it alone (`python lm_fsdp.py`), or once per rank under srun, torchrun or mpirun. It reads
torch's standard variables only: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT.
The result is the same, to rounding, for any number of ranks and any number of interruptions.
"""

# ruff: noqa: E402 (the command line is parsed before torch is imported: --help answers at once)
from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from training.language.options import SHAPES, parse_arguments
from training.signals import end_at_once

if __name__ == "__main__":
    OPTIONS = parse_arguments(sys.argv[1:], __doc__.splitlines()[0])
    end_at_once(resumable=bool(OPTIONS.modelpath))

import torch
import torch.distributed.fsdp
import torch.nn.functional as F

if not hasattr(torch.distributed.fsdp, "fully_shard"):
    sys.exit(f"lm_fsdp.py: torch {torch.__version__} has no torch.distributed.fsdp.fully_shard. Use torch 2.6 or newer")

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from training.checkpoint import save_model
from training.distributed import World, fail_together, sum_over_ranks
from training.failing import run_training
from training.health import Health
from training.language.model import GPT, count_parameters, operations_per_token, set_first_weights
from training.language.parallel import count_own, make_mesh, shard
from training.language.run import Run
from training.language.text import Text, count_windows, load_windows, open_text, own_share, window_at
from training.metrics import Metrics
from training.profiling import Profile
from training.progress import Progress, report_world, reporter
from training.schedule import learning_rate_factor
from training.sharded.checkpoints import ShardedCheckpoints
from training.stopping import StopSignals

SETTINGS = ("size", "context", "steps", "batch_size", "lr", "warmup", "clip", "seed", "bf16")  # that identify a run
STOP_INTERVAL = 4  # steps after which the ranks exchange signals
VALIDATION_WINDOWS = 32  # at most, spread over the text that is held out


def sum_of_losses(network: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the losses of all bytes; labels of -100 do not count."""
    return F.cross_entropy(network(inputs).float().flatten(0, 1), labels.flatten(), reduction="sum")


def batches(options: argparse.Namespace, run: Run, text: Text) -> Iterator[list[Tensor]]:
    """Yield this rank's share of the global batch of each step that is left; a rank's last labels may not count."""
    world = run.world
    count = count_windows(text.training, options.context)
    for step in range(run.position.step, options.steps):
        places = range(step * options.batch_size, (step + 1) * options.batch_size)
        windows = [window_at(place, count, options.seed) for place in places]
        share = own_share(windows, world, options.tensor)
        yield load_windows(text.training, share, options.context, world.device)


def micro_batches(options: argparse.Namespace, inputs: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the parts of this rank's share that fit in memory at a time: inputs and labels."""
    size = options.micro_batch or len(inputs)
    return zip(inputs.split(size), labels.split(size))


def take_step(options: argparse.Namespace, run: Run, inputs: Tensor, labels: Tensor) -> Tensor:
    """Take one step on the global batch, of which this rank has a share; return the norm of its gradient."""
    run.optimizer.zero_grad()
    loss_sum = torch.zeros((), device=inputs.device)
    for words, truth in micro_batches(options, inputs, labels):
        loss = sum_of_losses(run.network, words, truth)
        # FSDP2 averages the gradients of the ranks, for each piece: no rank ever has room for all of them. With this
        # scale the average is the gradient of the mean loss over the global batch, even if the shares differ in size.
        (loss * run.world.size / options.tensor / (options.batch_size * options.context)).backward()
        loss_sum += loss.detach()
    # The norm is that of the whole gradient: the parts are DTensors, whose norm is added up over the ranks.
    norm = nn.utils.clip_grad_norm_(run.network.parameters(), options.clip)
    run.optimizer.step()
    run.schedule.step()
    run.add(loss_sum, options.batch_size)
    return norm


@torch.no_grad()
def validate(options: argparse.Namespace, run: Run, text: Text) -> float:
    """Return the mean loss on windows of the text that is held out, in nats per byte."""
    world = run.world
    total = count_windows(text.validation, options.context)
    count = min(total, VALIDATION_WINDOWS)
    windows = own_share([place * total // count for place in range(count)], world, options.tensor)
    loss = torch.zeros(1, dtype=torch.float64, device=world.device)
    batch = load_windows(text.validation, windows, options.context, world.device)
    for inputs, labels in micro_batches(options, *batch):
        loss += sum_of_losses(run.network, inputs, labels)
    run.network.reshard()  # what is outside the blocks stays whole after a forward pass, for a backward pass
    return sum_over_ranks(loss)[0] / options.tensor / (count * options.context)


def set_up(options: argparse.Namespace, text: Text, world: World) -> Run:
    """Return the run at its first step."""
    torch.manual_seed(options.seed)
    with torch.device("meta"):  # without memory: a rank gets its parts only
        network = GPT(SHAPES[options.size], options.context, recompute=options.recompute)
    if options.compile:
        for block in network.blocks:  # all have the same code, which is compiled once
            block.forward = torch.compile(block.forward)
    shard(network, make_mesh(world, options.replicas, options.tensor), bf16=options.bf16)
    network.to_empty(device=world.device)
    set_first_weights(network, options.seed)

    matrices = [parameter for parameter in network.parameters() if parameter.dim() > 1]
    rest = [parameter for parameter in network.parameters() if parameter.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
        lr=options.lr,
        betas=(0.9, 0.95),
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, options.steps, options.warmup)
    )
    settings = {name: getattr(options, name) for name in SETTINGS}
    return Run(
        network,
        optimizer,
        schedule,
        settings,
        world,
        limits={"step": options.steps},
        data=text.fingerprint,
        tensor=options.tensor,
    )


class Training(NamedTuple):
    """What the steps of a training share."""

    options: argparse.Namespace
    run: Run
    text: Text
    checkpoints: ShardedCheckpoints | None
    metrics: Metrics
    stop: StopSignals
    report: Callable


def train(options: argparse.Namespace, world: World, stop: StopSignals) -> None:
    """Train on this rank, from where the last start left --modelpath; only rank 0 prints."""
    report = reporter(world)
    with ExitStack() as stack:
        checkpoints = None
        if options.modelpath:
            checkpoints = ShardedCheckpoints(
                options.modelpath / "checkpoints",
                world,
                keep=options.keep,
                every=options.every,
                timeout=options.timeout,
            )
            stack.enter_context(checkpoints)
            checkpoints.prepare(restart=options.restart)
        text = open_text(options.data, options.context, world)
        with fail_together(world):
            run = set_up(options, text, world)
        report_start(options, run, text, report)
        if file := run.resume(checkpoints):
            report(f"resuming after {run.position.step} steps, from {file}")
        with fail_together(world):
            directory = None if world.rank else options.modelpath
            metrics = Metrics(directory, options=vars(options), first_epoch=run.position.step, key="step")
        stack.enter_context(metrics)
        train_steps(Training(options, run, text, checkpoints, metrics, stop, report))
        run.save(checkpoints)
        report(f"validation loss: {run.position.validation_loss:.4f}")
        report(f"training time: {run.position.seconds:.1f} s")
        if options.modelpath:
            save_weights(run, options.modelpath / "lm_fsdp.pt")
            report(f"model written to {options.modelpath / 'lm_fsdp.pt'}")


def report_start(options: argparse.Namespace, run: Run, text: Text, report: Callable) -> None:
    """Report the ranks, the device, the model and the text."""
    world = run.world
    parts = world.size // options.replicas // options.tensor
    report_world(world, report, f"{options.replicas} copies x {parts} parts x {options.tensor} (tensor)")
    report(
        f"model {options.size}: {count_parameters(run.network)} parameters, of which rank 0 keeps "
        f"{count_own(run.network)}"
    )
    report(f"text: {text.name}, {len(text.training)} bytes for training and {len(text.validation)} for validation")


def train_steps(training: Training) -> None:
    """Take the steps that are left, with a line every --interval steps; exit if the ranks agree to stop."""
    options = training.options
    run = training.run
    position = run.position
    stop = training.stop
    health = Health(run.world, training.report, enabled=options.health)
    health.watch(*run.network.blocks)
    profile = Profile(options, run.world, training.report)
    progress = Progress("training", options.steps, enabled=run.world.rank == 0)
    run.start_clock()
    for inputs, labels in profile.batches(health.batches(batches(options, run, training.text))):
        norm = take_step(options, run, inputs, labels)
        progress.update(position.step, run.mean_loss)
        if position.step % options.interval == 0 or position.step == options.steps:
            run.settle()
            end_interval(training, norm, health)
            run.start_clock()  # a validation takes no time of the training
        if training.checkpoints:
            training.checkpoints.save_if_due(run)
        if position.step < options.steps and stop.agreed():
            file = run.save(training.checkpoints)
            stop.leave(training.report, f"{position.step} steps", file)


def end_interval(training: Training, norm: Tensor, health: Health) -> None:
    """Validate, report and record the steps since the last line; ``norm`` is that of the last gradient."""
    options = training.options
    run = training.run
    values = run.measure(validate(options, run, training.text), norm)
    name = f"step {run.position.step}/{options.steps}"
    line = (
        f"{name}  loss {values['loss']:.4f}  validation loss {values['validation_loss']:.4f}  "
        f"tokens/s {values['tokens_per_second']:.0f}  memory {values['peak_memory_bytes'] / 1e9:.2f} GB"
    )
    if options.peak_tflops:
        speed = values["tokens_per_second"] * operations_per_token(run.network) / run.world.size  # of a device
        values["utilisation"] = 100 * speed / (options.peak_tflops * 1e12)
        line += f"  utilisation {values['utilisation']:.1f} %"
    training.report(line)
    values.update(health.end_epoch(name))
    with fail_together(run.world):
        training.metrics.epoch(run.position.step, **values)


def save_weights(run: Run, path: Path) -> None:
    """Write the whole weights to a file on rank 0."""
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)  # on rank 0; the others get nothing
    weights = get_model_state_dict(run.network, options=whole)
    with fail_together(run.world):
        if weights:
            save_model(weights, path)


if __name__ == "__main__":
    run_training(train, OPTIONS, interval=STOP_INTERVAL)
