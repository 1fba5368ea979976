"""The recipes for CUDA with their own wheels, trained on CPUs: CUDA_WHEELS=1 allows 6 GB of downloads for each."""

import os

import pytest

from testbed.recipes import module

pytestmark = [pytest.mark.testbed, pytest.mark.thorough]


@pytest.mark.parametrize(
    ("recipe", "torch"),
    [("PyTorch-2.10.0-cuda-12.8-venv", "2.10.0+cu128 12.8"), ("PyTorch-2.15.0-cuda-13.2-venv", "2.15.0+cu132 13.2")],
)
def test_the_locks_own_wheels_are_installed_and_train_with_gloo(testbed, recipe, torch):
    if os.environ.get("CUDA_WHEELS") != "1":
        pytest.skip("CUDA_WHEELS=1 is not set: it allows 6 GB of downloads for each recipe")
    testbed.run(f"eb {recipe}.eb", timeout=3600)
    load = f"module load {module(recipe)}"
    assert (
        testbed.run(f"{load}; python -c 'import torch; print(torch.__version__, torch.version.cuda)'").strip() == torch
    )
    output = testbed.run(f"{load}; srun -N2 -n2 conda-python-distributed -u $PAYLOAD/mnist_ddp.py --epochs 1")
    assert "world size 2, backend gloo, device cpu" in output
