"""Starts ranks of the payload, and writes MNIST directories for its tests to train on."""

import os
import random
import resource
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from forked import Forked
from launching import PAYLOAD, Ranks, start_python

sys.path.insert(0, str(PAYLOAD))


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """What trains in the tests' own process leaves the other cores to other tests."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def no_gpu():
    """These tests are about CPUs, also on a machine that has GPUs: `tests/gpu` is about those."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
            patch.setenv(name, "")
        yield


@pytest.fixture
def run_alone(tmp_path):
    """Run a script as a user does at a prompt: with none of torch's variables."""

    def run(*arguments, script="mnist_ddp.py", status=0, cwd=tmp_path, **environment):
        # a test that names modules of its own needs a Python that has imported none
        start = start_python if "PYTHONPATH" in environment else Forked
        (rank,) = Ranks((PAYLOAD / script, *arguments), [environment], cwd=cwd, start=start).wait(status)
        return rank

    return run


@pytest.fixture(scope="session")
def write_mnist():
    """Write images and labels as the four IDX files of MNIST."""
    from mnist_ddp import load_data
    from training.data.idx import NAMES

    def write(directory, train_count, test_count):
        directory.mkdir(parents=True)
        for name, tensor, count in zip(NAMES, load_data(None), (train_count, train_count, test_count, test_count)):
            sizes = b"".join(size.to_bytes(4, "big") for size in tensor[:count].shape)
            content = bytes(tensor[:count].flatten().tolist())
            (directory / name).write_bytes(bytes([0, 0, 8, tensor.dim()]) + sizes + content)
        return directory

    return write


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A text of 24 kB in which a byte depends on those before it."""
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text("".join(f"{number} and {number + 1} are {2 * number + 1}\n" for number in range(1000)))
    return path


@pytest.fixture
def small_mnist(tmp_path, write_mnist):
    """A directory of 130 training and 31 test images."""
    return write_mnist(tmp_path / "mnist", 130, 31)


@pytest.fixture(scope="session")
def mnist():
    """The directory of the real MNIST files."""
    if not os.environ.get("MNIST_FILES"):
        pytest.skip("no MNIST files: MNIST_FILES does not name their directory")
    return Path(os.environ["MNIST_FILES"])


@pytest.fixture
def draw():
    """Random numbers; pytest shows their seed where a test fails."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"random.Random({seed})")
    return random.Random(seed)  # noqa: S311


@pytest.fixture
def limit_files():
    """A context in which no file of this process may be larger than a number of bytes."""

    @contextmanager
    def limit(size):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limit


@pytest.fixture
def checkpoints(tmp_path):
    import torch
    from training.checkpoint import Checkpoints
    from training.distributed import World

    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints", World(0, 1, torch.device("cpu")), keep=3)
    checkpoints.prepare()
    return checkpoints


@pytest.fixture
def alone():
    """A world of one rank."""
    import training.distributed

    with training.distributed.process_group({}, use_gpu=False, timeout=10) as world:
        yield world
