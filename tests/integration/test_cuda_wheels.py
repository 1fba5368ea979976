"""The locks for CUDA with their own wheels, trained on CPUs: CUDA_WHEELS=1 allows 6 GB of downloads for each."""

import os
import shutil

import pytest
from distributions import sha256

from testbed.recipes import CONTAINER, EASYCONFIGS, LOCK, VERSION, module

pytestmark = [pytest.mark.testbed, pytest.mark.thorough]

CUDA_13 = "2.15.0-cuda-13.2"
TORCH_OF_CUDA_13 = "2.15.0+cu132 13.2"


@pytest.fixture
def check(testbed):
    """A function that installs a recipe, by its path or name, and trains with its torch behind a command."""
    if os.environ.get("CUDA_WHEELS") != "1":
        pytest.skip("CUDA_WHEELS=1 is not set: it allows 6 GB of downloads for each recipe")

    def install_and_train(easyconfig, name, torch, enter=""):
        testbed.run(f"eb {easyconfig}", timeout=3600)
        load = f"module load {module(name)}"
        show = "python -c 'import torch; print(torch.__version__, torch.version.cuda)'"
        assert testbed.run(f"{load}; {enter} {show}").strip() == torch
        launch = f"srun -N2 -n2 {enter} conda-python-distributed -u $PAYLOAD/mnist_ddp.py --epochs 1"
        assert "world size 2, backend gloo, device cpu" in testbed.run(f"{load}; {launch}")

    return install_and_train


@pytest.mark.parametrize(
    ("recipe", "torch"),
    [("PyTorch-2.10.0-cuda-12.8-venv", "2.10.0+cu128 12.8"), (f"PyTorch-{CUDA_13}-venv", TORCH_OF_CUDA_13)],
)
def test_the_locks_own_wheels_are_installed_and_train_with_gloo(check, recipe, torch):
    check(f"{recipe}.eb", recipe, torch)


def test_a_site_makes_an_image_of_a_lock_with_the_recipe_of_the_image_for_cpus(check, work):
    """As docs/recipes.md says: three files."""
    lock = EASYCONFIGS / f"PyTorch-{CUDA_13}.txt"
    name = f"PyTorch-{CUDA_13}-singularity"
    shutil.copy(lock, work)
    shutil.copy(EASYCONFIGS / f"PyTorch-{VERSION}-cpu.def", work / f"PyTorch-{CUDA_13}.def")
    text = (EASYCONFIGS / f"{CONTAINER}.eb").read_text()
    for old, new in ((VERSION, "2.15.0"), ("-cpu", "-cuda-13.2"), (sha256(LOCK), sha256(lock))):
        text = text.replace(old, new)
    (work / f"{name}.eb").write_text(text)
    check(work / f"{name}.eb", name, TORCH_OF_CUDA_13, enter="singularity exec $SIF")
