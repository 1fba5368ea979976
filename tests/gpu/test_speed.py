"""Speed on a real GPU: time to 99 %, images/s, tokens/s; run by pytest's own Python, skipped without a GPU or MNIST."""

import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
from repository import TREE

#: A model of about 124 M parameters; 989: TFLOP/s of an H100 or H200, half of the value with sparsity
#: (https://www.nvidia.com/en-us/data-center/h100/).
LANGUAGE_MODEL = (
    "--size 124M --bf16 --compile --context 1024 --batch-size 64 --micro-batch 32 --steps 40 --interval 10 "
    "--peak-tflops 989"
)


@pytest.fixture(scope="module")
def train():
    """A function that trains by a script of the payload and returns what a pattern finds; needs a GPU."""
    torch = pytest.importorskip("torch", reason=f"no torch in {sys.executable}")
    if not torch.cuda.is_available():
        pytest.skip(f"the torch of {sys.executable} sees no GPU")

    def run(script, options, *patterns):
        command = [sys.executable, str(TREE / "payload" / script), "--gpu", *options.split()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        return [float(re.search(pattern, done.stdout, re.MULTILINE)[1]) for pattern in patterns]

    return run


@pytest.mark.parametrize("precision", ["", "--bf16"], ids=["float32", "bf16"])
def test_two_epochs_reach_99_percent_and_the_time_is_printed(train, precision, record_property, capsys):
    data = Path(os.environ.get("MNIST_FILES", ""))
    if not any(data.glob("train-images-idx3-ubyte*")):
        pytest.skip("no MNIST files: MNIST_FILES does not name their directory")
    patterns = (r"test accuracy: (\S+)", r"training time: (\S+)", r"epoch 2/2 .* images/s (\d+)")
    options = f"--data {data} --epochs 2 {precision} --seed"
    trainings = [train("mnist_ddp.py", f"{options} {seed}", *patterns) for seed in range(5)]
    accuracy, seconds, speed = (median(column) for column in zip(*trainings))
    record_property("seconds_to_99", seconds)
    record_property("images_per_second", speed)
    with capsys.disabled():
        print(f"\nmedians of {len(trainings)}: {accuracy:.2f} % after {seconds:.2f} s, {speed:.0f} images/s")
    assert accuracy >= 99


def test_a_model_of_124_million_parameters_trains_and_its_utilisation_is_printed(train, record_property, capsys):
    last = "^step 40/40 .* "
    speed, utilisation = train("lm_fsdp.py", LANGUAGE_MODEL, rf"{last}tokens/s (\S+)", rf"{last}utilisation (\S+)")
    record_property("tokens_per_second", speed)
    record_property("utilisation", utilisation)
    with capsys.disabled():
        print(f"\n{speed} tokens/s, {utilisation} % of an H100's peak")
    assert utilisation > 20
