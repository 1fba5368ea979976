# SPDX-License-Identifier: BSD-3-Clause
"""The metrics of a language model: a line every so many steps, and its curves."""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.distributed as dist

from training.language.model import flops_per_token, peak_memory, peak_of
from training.language.run import Run
from training.metrics import Metrics, read_epochs
from training.metrics.curves import mark_ranks
from training.metrics.lines import Form
from training.pictures import BLUE, GREEN, GREY, ORANGE, write_picture

STEPS = Form(
    "step",
    (
        "loss",
        "validation_loss",
        "unigram_loss",
        "tokens",
        "tokens_per_second",
        "utilisation",
        "peak_memory_bytes",
        "learning_rate",
        "gradient_norm",
        "seconds",
        "world_size",
    ),
)


class LanguageMetrics(Metrics):
    """Metrics whose lines have the fields of ``STEPS``; a utilisation, in per cent, that is unknown is null."""

    form = STEPS

    def draw_picture(self, picture: Path) -> bool:
        return draw_steps(self.path, picture)


def draw_steps(metrics_file: Path, picture: Path) -> bool:
    """Draw losses and tokens/s of a metrics.jsonl over its steps as a PNG, if it has any.

    Returns False if drawing failed, which is reported in a line.
    """
    lines = read_epochs(metrics_file, STEPS)
    if not lines:
        return True

    def draw(figure) -> None:
        def column(name: str) -> list[float]:
            return [math.nan if line[name] is None else line[name] for line in lines]

        steps, speeds = column("step"), column("tokens_per_second")
        figure.suptitle(picture.absolute().parent.name, x=0.01, ha="left", weight="bold")
        loss, speed = figure.subplots(1, 2)
        loss.plot(steps, column("loss"), "o-", color=BLUE, label="training")
        loss.plot(steps, column("validation_loss"), "o-", color=GREEN, label="validation")
        loss.axhline(lines[-1]["unigram_loss"] or math.nan, color=GREY, linestyle="--", label="unigram model")
        loss.set(title=f"Validation loss: {column('validation_loss')[-1]:.4f}", xlabel="step", ylabel="nats per byte")
        loss.legend()
        speed.plot(steps, speeds, "o-", color=ORANGE)
        speed.set(title=f"Speed: {speeds[-1]:,.0f} tokens/s", xlabel="step", ylabel="tokens/s")
        speed.set_ylim(0, 1.1 * max(speeds))
        mark_ranks(speed, lines, "step")

    return write_picture(picture, draw, width=9)


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
