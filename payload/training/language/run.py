# SPDX-License-Identifier: BSD-3-Clause
"""A language model in training, how far it is, and its metrics: a line every so many steps, and their curves."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from training import TrainingError
from training.distributed import World, sum_over_ranks
from training.finite import check_loss
from training.language.model import GPT, flops_per_token, peak_memory, peak_of
from training.metrics import Form, Metrics, column, mark_ranks, read_epochs
from training.pictures import BLUE, GREEN, GREY, ORANGE, write_picture


@dataclass
class Position:
    """How far a training is: the same numbers on all ranks.

    ``windows`` of the text were taken so far, in the order that the seed decides; ``loss_sum``, ``part_tokens``
    and ``part_seconds`` are those since the last line of the metrics.
    """

    step: int = 0
    windows: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0
    part_tokens: int = 0
    part_seconds: float = 0.0
    validation_loss: float = 0.0


@dataclass
class Run:
    """A model with what trains it. ``settings`` identify the run, ``data`` its text; ``tensor`` ranks share data."""

    network: GPT
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LambdaLR
    settings: dict
    data: str
    world: World
    steps: int
    tensor: int = 1
    position: Position = field(default_factory=Position)

    def start_clock(self) -> None:
        """Begin to count the time, and the losses of this rank, that ``settle`` adds to the position."""
        self.loss = torch.zeros(1, dtype=torch.float64, device=self.world.device)
        self.settled_tokens = self.position.tokens
        self.start = time.perf_counter()

    def add(self, loss: torch.Tensor, windows: int) -> None:
        """Count a step on ``windows`` windows, over all ranks, in which this rank had the sum of losses ``loss``."""
        position, tokens = self.position, windows * self.network.context
        self.loss.add_(loss)
        position.step += 1
        position.windows += windows
        position.tokens += tokens
        position.part_tokens += tokens

    def mean_loss(self) -> float:
        """Return the mean loss of this rank's bytes since ``settle``, for the progress."""
        return self.loss.item() * self.world.size / self.tensor / max(1, self.position.tokens - self.settled_tokens)

    def settle(self) -> None:
        """Add the losses of all ranks, and the time since the last call, to the position; all ranks must call it.

        If the losses are not finite, all ranks end.
        """
        position = self.position
        position.loss_sum += sum_over_ranks(self.loss)[0] / self.tensor  # waits for the device
        check_loss(position.loss_sum, f"the steps up to {position.step}", self.world)
        seconds = time.perf_counter() - self.start
        position.seconds += seconds
        position.part_seconds += seconds
        self.start_clock()

    def check_position(self, position: Mapping) -> None:
        """Raise TrainingError if the position of a checkpoint is not one of this run."""
        step, batch_size = position["step"], self.settings["batch size"]
        if not 0 <= step <= self.steps or position["windows"] != step * batch_size:
            raise TrainingError(
                f"a checkpoint after {step} steps and {position['windows']} windows does not fit this run of "
                f"{self.steps} steps. Choose another directory with --modelpath, or use --restart"
            )


LOSSES = ("loss", "validation_loss", "unigram_loss")
SPEEDS = ("tokens", "tokens_per_second", "utilisation", "seconds", "world_size")
STEPS = Form("step", (*LOSSES, *SPEEDS, "peak_memory_bytes", "learning_rate", "gradient_norm"))


class LanguageMetrics(Metrics):
    """Metrics whose lines have the fields of ``STEPS``; a utilisation, in per cent, that is unknown is null."""

    form = STEPS

    def draw_picture(self, picture: Path) -> bool:
        """Draw losses and tokens/s over the steps; return whether that succeeded."""
        lines = read_epochs(self.path, STEPS)

        def draw(figure) -> None:
            steps, speeds, reached = (column(lines, name) for name in ("step", "tokens_per_second", "validation_loss"))
            figure.suptitle(picture.absolute().parent.name, x=0.01, ha="left", weight="bold")
            loss, speed = figure.subplots(1, 2)
            loss.plot(steps, column(lines, "loss"), "o-", color=BLUE, label="training")
            loss.plot(steps, reached, "o-", color=GREEN, label="validation")
            loss.axhline(lines[-1]["unigram_loss"] or math.nan, color=GREY, linestyle="--", label="unigram model")
            loss.set(title=f"Validation loss: {reached[-1]:.4f}", xlabel="step", ylabel="nats per byte")
            loss.legend()
            speed.plot(steps, speeds, "o-", color=ORANGE)
            speed.set(title=f"Speed: {speeds[-1]:,.0f} tokens/s", xlabel="step", ylabel="tokens/s")
            speed.set_ylim(0, 1.1 * max(speeds))
            mark_ranks(speed, lines, "step")

        return not lines or write_picture(picture, draw, width=9)


def measure(run: Run, validation_loss: float, norm: torch.Tensor, peak_teraflops: float | None = None) -> dict:
    """Return the values of the steps since the last line, and begin the next; all ranks must call it.

    ``norm`` is that of the last gradient. ``peak_teraflops`` is of a device; by default that of the table.
    """
    position, world = run.position, run.world
    speed = position.part_tokens / position.part_seconds
    peak = peak_teraflops or peak_of(world.device)
    memory = torch.tensor(peak_memory(world.device))
    dist.all_reduce(memory, op=dist.ReduceOp.MAX, group=world.host_group)
    values = {
        "loss": position.loss_sum / position.part_tokens,
        "validation_loss": validation_loss,
        "tokens": position.tokens,
        "tokens_per_second": speed,
        "utilisation": peak and 100 * speed * flops_per_token(run.network) / (world.size * peak * 1e12),
        "peak_memory_bytes": int(memory),
        "learning_rate": run.optimizer.param_groups[0]["lr"],
        "gradient_norm": float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm),
        "seconds": position.part_seconds,
        "world_size": world.size,
    }
    position.validation_loss = validation_loss
    position.loss_sum = position.part_seconds = 0.0
    position.part_tokens = 0
    return values


def format_line(values: dict) -> str:
    """Return the values of a line for people."""
    used = "-" if values["utilisation"] is None else f"{values['utilisation']:.1f} %"
    return (
        f"loss {values['loss']:.4f}  validation loss {values['validation_loss']:.4f}  "
        f"tokens/s {values['tokens_per_second']:.0f}  utilisation {used}  "
        f"memory {values['peak_memory_bytes'] / 1e9:.2f} GB"
    )
