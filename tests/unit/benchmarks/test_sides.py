"""Sides of rows: the CPU time of a task, trainings without training, and the textbook's loop."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import steps, trainings
from benchmarks.programs.cpu_seconds import find_reports
from benchmarks.session import PROGRAMS
from testbed.layout import TestbedError as Error  # pytest would take it for a class of tests


class Programs:
    """Replaces a Session: returns prepared outputs and records the commands."""

    scratch = Path("/scratch")

    def __init__(self, *outputs):
        self.outputs = list(outputs)
        self.commands = []

    def load(self, *_recipes):
        """The variables that the sides read."""
        return {"MNIST_ROOT": "/data"}

    def run(self, command, _env):
        """The next of the outputs."""
        self.commands.append([str(word) for word in command])
        return self.outputs.pop(0)


BURN = "import time\nwhile time.process_time() < 0.2: pass"
CHILD = f"import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', {BURN!r}])"


@pytest.mark.parametrize("code", [BURN, CHILD])
def test_cpu_seconds_are_those_of_the_command_and_of_its_children(code):
    command = [PROGRAMS / "cpu_seconds.py", sys.executable, "-S", "-c"]
    (seconds,) = find_reports(subprocess.run([*command, code], capture_output=True, text=True, check=True).stdout)
    assert 0.2 < seconds < 5
    assert subprocess.run([*command, "raise SystemExit(7)"], capture_output=True, check=False).returncode == 7


def test_a_job_of_which_a_task_reports_nothing_is_a_failure():
    assert find_reports("hello\nCPU seconds: 1.5\nbye\nCPU seconds: 0.25\n") == [1.5, 0.25]
    with pytest.raises(Error, match="1 tasks of 2"):
        next(steps.cpu(Programs("CPU seconds: 1.5\n")))


def trained(accuracy, seconds):
    """The output of a training."""
    return f"epoch 2/2  test accuracy {accuracy} %\ntest accuracy: {accuracy} %\ntraining time: {seconds} s\n"


def test_a_training_that_misses_99_percent_costs_its_time_and_the_next_ones():
    textbook = "seconds per epoch: 80.5\n"
    programs = Programs(trained(98.99, 4.5), trained(99.0, 5.0), textbook, trained(99.1, 4.0), textbook)
    rounds = trainings.time_to_99(programs)
    assert [next(rounds), next(rounds)] == [[(9.5, 161.0)], [(4.0, 161.0)]]
    ours = [command[-1] for command in programs.commands if command[-2] == "--seed"]
    theirs = [command[3:] for command in programs.commands if "textbook" in command[1]]
    assert (ours, theirs) == (["0", "1", "2"], [["0", "188"], ["1", "188"]])


def test_lone_runs_count_together_two_ranks_once_and_a_world_that_fell_apart_is_an_error():
    apart = "images/s 10000\nimages/s 14000\n"
    assert next(trainings.two_ranks(Programs("images/s 20000\n", apart))) == [(3.0, 2.5)]
    with pytest.raises(Error, match="2 runs, not of 1"):
        next(trainings.two_ranks(Programs(apart)))


@pytest.mark.slow
def test_the_textbooks_images_and_network_are_the_examples():
    torch = pytest.importorskip("torch")
    from mnist_ddp import load_data
    from training.data import normalise

    from benchmarks.programs import textbook_mnist

    data = load_data(None)
    image, label = textbook_mnist.Images(data.train_images[:8], data.train_labels[:8])[7]
    assert torch.allclose(image, normalise(data.train_images[:8], torch.device("cpu"))[7], atol=1e-6)
    assert label == data.train_labels[7]
    model = textbook_mnist.build_model()
    shapes = [list(weights.shape) for weights in model.parameters() if weights.dim() > 1]
    assert shapes == [[32, 1, 3, 3], [64, 32, 3, 3], [128, 9216], [10, 128]]
    assert model(torch.zeros(2, 1, 28, 28)).exp().sum(dim=1).tolist() == pytest.approx([1, 1])
