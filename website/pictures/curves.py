"""Draws the curves of trainings from their metrics.jsonl, which website/train wrote. Needs matplotlib."""

import io
import json
from pathlib import Path

from benchmarks.picture import BACKGROUND, GRID, INK, MET, MISSED, add_dark_colours

DATA = Path(__file__).resolve().parents[1] / "data"
INCHES = 7.2, 3.0


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
    import matplotlib

    matplotlib.use("svg")
    from matplotlib.figure import Figure

    ink = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
    style = {
        "svg.fonttype": "none", "svg.hashsalt": "curves", "font.family": "sans-serif", "font.size": 9,
        "axes.facecolor": BACKGROUND, "axes.grid": True, "grid.color": GRID, "axes.titlesize": 10,
        "axes.spines.top": False, "axes.spines.right": False, **dict.fromkeys(ink, INK),
    }  # fmt: skip
    with matplotlib.rc_context(style):
        figure = Figure(INCHES, facecolor=BACKGROUND, layout="constrained")
        draw(figure)
        text = io.StringIO()
        figure.savefig(text, format="svg", facecolor=BACKGROUND, metadata={"Date": None, "Creator": None})
    return add_dark_colours(text.getvalue())
