"""What becomes of a training whose newest checkpoint is damaged: it resumes from the one before, with the same result.

These tests know what files are there and how torch reads them, not which sentence is printed or how it is found out.
"""

import random
import re
import shutil

import forked_ranks
import pytest
import torch
from forked_ranks import equal, weights
from launching import launch

pytestmark = pytest.mark.usefixtures("zygote")

BITS = 3  # that are flipped in each place


def flip_bit(path, place):
    """Flip a bit of the byte at a place in a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << place % 8
    path.write_bytes(content)


def place_of(tensor, path):
    """Where the middle of a tensor is in a file."""
    content = bytes(tensor.untyped_storage())
    return path.read_bytes().index(content) + len(content) // 2


#: Shapes of the optimizer's moments that its parameters do not have.
SHAPES = {
    "flat": lambda one: one.reshape(-1),
    "shorter": lambda one: one[:1].clone(),
    "longer": lambda one: torch.cat([one, one]),
}


@pytest.fixture(scope="module")
def mnist_run(tmp_path_factory, write_mnist):
    """A training of three epochs, without interruption, and what starts it again in another directory."""
    root = tmp_path_factory.mktemp("outcomes")
    line = ("--data", write_mnist(root / "mnist", 130, 31), "--epochs", 3, "--batch-size", 32, "--modelpath")
    (rank,) = forked_ranks.train(1, *line, root / "run")
    assert rank.status == 0, rank.stderr
    return root / "run", line


def resumed(mnist_run, directory):
    """Resume the run in ``directory``: its end must be that of the uninterrupted one. Returns where it resumed."""
    root, line = mnist_run
    (directory / "mnist_ddp.pt").unlink()
    (rank,) = forked_ranks.train(1, *line, directory)
    assert rank.status == 0, (rank.status, rank.stderr)
    assert equal(weights(directory), weights(root))
    return re.search(r"resuming after (\d) epochs", rank.stdout)[1]


def test_a_bit_that_is_flipped_in_a_checkpoint_never_changes_the_result(mnist_run, tmp_path):
    newest = "checkpoints/epoch-0003-step-000000.pt"
    state = torch.load(mnist_run[0] / newest, weights_only=True)
    momentum = state["optimizer"]["state"][0]["exp_avg"]
    for tensor in (state["model"]["1.weight"], momentum, state["random"][0]["cpu"]):
        directory = shutil.copytree(mnist_run[0], tmp_path / "tensor", dirs_exist_ok=True)
        flip_bit(directory / newest, place_of(tensor, directory / newest))
        assert resumed(mnist_run, directory) == "2"
    size = (mnist_run[0] / newest).stat().st_size
    seed = random.SystemRandom().randrange(2**32)
    print(f"random.Random({seed})")  # pytest shows it where this fails
    for place in random.Random(seed).sample(range(size), BITS):  # noqa: S311
        directory = shutil.copytree(mnist_run[0], tmp_path / f"bit {place}")
        flip_bit(directory / newest, place)
        assert resumed(mnist_run, directory) in "23"  # some bits, such as those of a date, are never read


@pytest.mark.parametrize("shape", SHAPES)
def test_an_optimizer_state_of_another_shape_is_left_for_the_checkpoint_before(mnist_run, tmp_path, shape):
    """A fused Adam overwrites memory with it: the process aborts, or goes on with a wrong result."""
    newest = "checkpoints/epoch-0003-step-000000.pt"
    state = torch.load(mnist_run[0] / newest, weights_only=True)
    moments = state["optimizer"]["state"][2]
    moments.update({name: SHAPES[shape](one) for name, one in moments.items() if one.dim()})
    directory = shutil.copytree(mnist_run[0], tmp_path / "run")
    torch.save(state, directory / newest)
    assert resumed(mnist_run, directory) == "2"


LANGUAGE_MODEL = ("--size", "100K", "--steps", 9, "--interval", 3, "--every", 3, "--context", 32, "--batch-size", 4)


@pytest.fixture(scope="module")
def language_run(tmp_path_factory, payload, zygote):
    """An uninterrupted run of lm_fsdp.py on two ranks, and a function that runs the same line in a directory."""
    root = tmp_path_factory.mktemp("language")
    (root / "text").write_text("".join(f"{number} and {number + 1}\n" for number in range(1000)))

    def run(size, directory, odd_shape=None):
        arguments = list(map(str, ("--data", root / "text", *LANGUAGE_MODEL, "--modelpath", directory)))
        command = ("-c", ODD_SHAPES % (odd_shape, arguments)) if odd_shape else (payload / "lm_fsdp.py", *arguments)
        environments = [{"PYTHONPATH": str(payload)}] * size
        return launch(size, command, environments=environments, start=zygote.start).wait()

    ranks = run(2, root / "run")
    assert [rank.status for rank in ranks] == [0, 0], ranks[0].stderr
    return root / "run", run


def model_resumed(language_run, directory):
    """Resume on two ranks: the end must be that of the uninterrupted run. Returns the step where it resumed."""
    root, run = language_run
    (directory / "lm_fsdp.pt").unlink()
    ranks = run(2, directory)
    assert [rank.status for rank in ranks] == [0, 0], [rank.stderr for rank in ranks]
    for name, weight in torch.load(root / "lm_fsdp.pt", weights_only=True).items():
        found = torch.load(directory / "lm_fsdp.pt", weights_only=True)[name]
        assert (found - weight).norm() <= 1e-5 * weight.norm()
    return re.search(r"resuming after (\d) steps", ranks[0].stdout)[1]


def test_a_bit_that_is_flipped_in_a_sharded_checkpoint_never_changes_the_result(language_run, tmp_path):
    seed = random.SystemRandom().randrange(2**32)
    print(f"random.Random({seed})")  # pytest shows it where this fails
    draw = random.Random(seed)  # noqa: S311
    for name in ("__0_0.distcp", "__1_0.distcp", "manifest.json"):
        directory = shutil.copytree(language_run[0], tmp_path / name)
        path = directory / "checkpoints" / "step-00000009" / name
        flip_bit(path, draw.randrange(path.stat().st_size))
        assert model_resumed(language_run, directory) in ("6" if name.endswith("json") else "69")  # 9: padding


ODD_SHAPES = """
import lm_fsdp, torch
from training.language.options import parse_arguments
from training.sharded import ShardedCheckpoints

def start(checkpoints, run, start=ShardedCheckpoints.start, **options):
    kept = {parameter: dict(state) for parameter, state in run.optimizer.state.items()}
    if run.position.step == 9:
        for state in run.optimizer.state.values():
            state["exp_avg"] = %s
    start(checkpoints, run, **{**options, "asynchronous": False})
    run.optimizer.state.update(kept)

ShardedCheckpoints.start = start
lm_fsdp.main(parse_arguments(%s))
"""


def test_a_sharded_optimizer_state_of_another_shape_is_left_for_the_checkpoint_before(language_run, tmp_path):
    (rank,) = language_run[1](1, tmp_path / "run", 'torch.cat([state["exp_avg"]] * 2)')
    assert rank.status == 0, rank.stderr
    assert (tmp_path / "run/checkpoints/step-00000009").is_dir()
    assert model_resumed(language_run, tmp_path / "run") == "6"
