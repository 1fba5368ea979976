"""Time to 99 % on a real GPU, and images/s; run by pytest's own Python, skipped without a GPU or without MNIST."""

import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

TREE = Path(__file__).parents[2]
SEEDS = range(5)


@pytest.fixture(scope="module")
def mnist():
    """The directory of the four MNIST files; skips the test without it or without a GPU."""
    torch = pytest.importorskip("torch", reason=f"no torch in {sys.executable}")
    if not torch.cuda.is_available():
        pytest.skip(f"the torch of {sys.executable} sees no GPU")
    directory = Path(os.environ.get("MNIST_ROOT") or TREE / "shared" / "mnist")
    if not any(directory.glob("train-images-idx3-ubyte*")):
        pytest.skip(f"no MNIST files in {directory}: MNIST_ROOT names their directory")
    return directory


@pytest.fixture(scope="module", params=[(), ("--bf16",)], ids=["float32", "bf16"])
def trainings(request, mnist):
    """Results of trainings of 2 epochs, each with another seed: accuracy, seconds, images/s of the last epoch."""
    told = []
    for seed in SEEDS:
        command = [TREE / "payload" / "mnist_ddp.py", "--gpu", "--data", mnist, "--epochs", "2", "--seed", seed]
        done = subprocess.run(
            [sys.executable, *map(str, command), *request.param],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        patterns = (r"test accuracy: (\S+)", r"training time: (\S+)", r"epoch 2/2 .* images/s (\d+)")
        told.append([float(re.search(pattern, done.stdout)[1]) for pattern in patterns])
    return told


def test_two_epochs_reach_99_percent_and_the_time_is_printed(trainings, record_property, capsys):
    accuracy, seconds, speed = (median(column) for column in zip(*trainings))
    record_property("seconds_to_99", seconds)
    record_property("images_per_second", speed)
    with capsys.disabled():
        print(f"\nmedians of {len(trainings)}: {accuracy:.2f} % after {seconds:.2f} s, {speed:.0f} images/s")
    assert accuracy >= 99
