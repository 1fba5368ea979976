# SPDX-License-Identifier: BSD-3-Clause
"""Draws loss, accuracy and speed over the epochs of a training."""

from __future__ import annotations

import math
from pathlib import Path

from training.metrics.lines import read_epochs
from training.pictures import BLUE, GREEN, GREY, ORANGE, write_picture

PICTURE = "curves.png"


def draw_curves(metrics_file: Path, picture: Path, selection: str = "test") -> bool:
    """Draw loss, accuracy and images/s of a metrics.jsonl over its epochs as a PNG, if it has any.

    ``selection`` names the images of the accuracies: "test" or "validation". Returns False if drawing
    failed, which is reported in a line.
    """
    epochs = read_epochs(metrics_file)
    if not epochs:
        return True

    def draw(figure) -> None:
        def column(name: str) -> list[float]:
            return [math.nan if line[name] is None else line[name] for line in epochs]

        numbers, losses, accuracies, speeds = map(column, ("epoch", "loss", "accuracy", "images_per_second"))
        best = max(range(len(epochs)), key=lambda at: (accuracies[at], -at))

        figure.suptitle(picture.absolute().parent.name, x=0.01, ha="left", weight="bold")
        loss, accuracy, speed = figure.subplots(1, 3)
        for panel in (loss, accuracy, speed):
            panel.set(xlabel="epoch", xlim=(numbers[0] - 0.5, numbers[-1] + 0.5))
            panel.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        loss.plot(numbers, losses, "o-", color=BLUE)
        loss.set(title=f"Training loss: {losses[-1]:.4f}", ylabel="mean over the training images")
        accuracy.plot(numbers, accuracies, "o-", color=GREEN)
        accuracy.plot(numbers[best], accuracies[best], "*", color=GREEN, markersize=14)
        accuracy.set(
            title=f"{selection.capitalize()} accuracy: {accuracies[-1]:.2f} %, at best {accuracies[best]:.2f} %",
            ylabel=f"% of the {selection} images",
        )
        speed.plot(numbers, speeds, "o-", color=ORANGE)
        speed.set(title=f"Speed: {speeds[-1]:,.0f} images/s", ylabel="images/s")
        speed.set_ylim(0, 1.1 * max(speeds))
        speed.yaxis.set_major_formatter("{x:,.0f}")
        mark_ranks(speed, epochs)

    return write_picture(picture, draw, width=12)


def mark_ranks(panel, epochs: list[dict], key: str = "epoch") -> None:
    """Write the number of ranks where the curve starts, and a line where a start has another number."""
    before = None
    for line in epochs:
        size = line["world_size"]
        if size != before:
            ranks = f" {size} rank" + "s" * (size > 1)
            start = line[key] - 0.5
            panel.text(start, 0.03, ranks, transform=panel.get_xaxis_transform())
            if before:
                panel.axvline(start, color=GREY, linestyle=":")
        before = size
