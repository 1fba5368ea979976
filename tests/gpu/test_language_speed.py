"""tokens/s and utilisation of a model of about 124 M parameters on a real GPU; skipped without one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
LINE = (
    "--gpu",
    "--size",
    "124M",
    "--bf16",
    "--compile",
    "--context",
    "1024",
    "--batch-size",
    "64",
    "--micro-batch",
    "32",
    "--steps",
    "40",
    "--interval",
    "10",
    "--peak-tflops",
    "989",  # of an H100 or H200: https://www.nvidia.com/en-us/data-center/h100/, half of the value with sparsity
)


def test_a_model_of_124_million_parameters_trains_and_its_utilisation_is_printed(record_property, capsys):
    torch = pytest.importorskip("torch", reason=f"no torch in {sys.executable}")
    if not torch.cuda.is_available():
        pytest.skip(f"the torch of {sys.executable} sees no GPU")
    command = [sys.executable, str(TREE / "payload" / "lm_fsdp.py"), *LINE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    speed, used = re.search(r"^step 40/40 .* tokens/s (\S+)  utilisation (\S+)", done.stdout, re.M).groups()
    record_property("tokens_per_second", speed)
    record_property("utilisation", used)
    with capsys.disabled():
        print(f"\n{torch.cuda.get_device_name()}: {speed} tokens/s, {used} % of an H100's peak")
    assert float(used) > 20
