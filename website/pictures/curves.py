"""Draws the curves of trainings from their metrics.jsonl, which website/train wrote. Needs matplotlib."""

import json
from pathlib import Path

from benchmarks.svg import BACKGROUND, GRID, INK, MET, MISSED, svg_figure

DATA = Path(__file__).resolve().parents[1] / "data"
INCHES = 7.2, 3.0
STYLE = {
    "axes.facecolor": BACKGROUND, "axes.grid": True, "grid.color": GRID, "axes.titlecolor": INK, "axes.titlesize": 10,
    "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip


def draw_mnist():
    """Loss and accuracy of mnist_ddp.py over its epochs."""
    epochs = read("mnist_ddp")
    numbers = [each["epoch"] for each in epochs]

    def draw(figure):
        loss, accuracy = figure.subplots(1, 2)
        for axes, field, title in (
            (loss, "loss", "Training loss"),
            (accuracy, "accuracy", "Test accuracy, %"),
        ):
            axes.plot(numbers, [each[field] for each in epochs], "o-", color=MET, markersize=4)
            axes.set_title(title)
            axes.set_xlabel("epoch")
            axes.set_xticks(numbers[1::2])
        loss.set_ylim(bottom=0)

    return svg(draw)


def draw_language_model():
    """Losses of lm_fsdp.py over its steps, and that of a model that knows only how frequent each byte is."""
    steps = read("lm_fsdp")
    numbers = [each["step"] for each in steps]

    def draw(figure):
        axes = figure.subplots()
        axes.plot(numbers, [each["loss"] for each in steps], color=MET, label="training")
        axes.plot(numbers, [each["validation_loss"] for each in steps], color=MISSED, linestyle="dashed",
                  label="validation")  # fmt: skip
        axes.axhline(steps[-1]["unigram_loss"], color=INK, linestyle="dotted", label="unigram model")
        axes.set_xlabel("step")
        axes.set_ylabel("loss, nats per byte")
        axes.legend(frameon=False)

    return svg(draw)


def read(name):
    """The lines of the metrics of a training."""
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def svg(draw):
    """What `draw` draws into a figure, as the text of a file for light and dark pages."""
    from matplotlib import rc_context

    with rc_context(STYLE), svg_figure(*INCHES) as (figure, text):
        draw(figure)
    return text.getvalue()
