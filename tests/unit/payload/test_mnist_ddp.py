"""mnist_ddp.py: one training, whatever the number of ranks; and its command line."""

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import mnist_ddp
import pytest
import torch
import torch.nn.functional as F
from launching import PAYLOAD, launch, run_code, run_ranks
from training import TrainingError
from training.data import GlobalBatchSampler, load_dataset, normalise
from training.distributed import World

pytestmark = [pytest.mark.early, pytest.mark.slow]

OUTPUT = re.compile(
    r"""world size (?P<size>\d+), backend gloo, device cpu, torch \S+, data \S+: 130 training and 31 test images
epoch 1/2  loss (?P<loss>\d\.\d{4})  test accuracy \d+\.\d\d %  images/s \d+
epoch 2/2  loss (?P<last_loss>\d\.\d{4})  test accuracy (?P<last_accuracy>\d+\.\d\d) %  images/s \d+
test accuracy: (?P<accuracy>\d+\.\d\d) %
training time: \d+\.\d s
model written to (?P<model>\S+/mnist_ddp\.pt)
"""
)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory, write_mnist):
    """The same training in worlds of 1, 2 and 3: what the ranks printed, by the size of the world.

    Of the five global batches of an epoch the last has two samples, so that in a world of three
    one rank has none.
    """
    root = tmp_path_factory.mktemp("worlds")
    data = write_mnist(root / "mnist", 130, 31)
    return {
        size: run_ranks(size, "--data", data, "--epochs", 2, "--batch-size", 32, "--modelpath", root / str(size))
        for size in (1, 2, 3)
    }


def outcome(ranks):
    return OUTPUT.fullmatch(ranks[0].stdout)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_rank_0_alone_prints_and_writes_and_the_model_does_not_depend_on_the_number_of_ranks(worlds, size):
    assert [rank.stderr for rank in worlds[size]] == [""] * size
    assert [rank.stdout for rank in worlds[size][1:]] == [""] * (size - 1)
    found = outcome(worlds[size])
    assert found, worlds[size][0].stdout
    assert int(found["size"]) == size
    assert float(found["last_loss"]) < float(found["loss"])
    assert float(found["loss"]) == pytest.approx(float(outcome(worlds[1])["loss"]), abs=0.001)
    assert found["accuracy"] == found["last_accuracy"]

    alone = torch.load(outcome(worlds[1])["model"], weights_only=True)
    together = torch.load(found["model"], weights_only=True)
    mnist_ddp.build_model().load_state_dict(together)  # of the network without the wrapper
    # Where two pixels of a pooling window are equal but for rounding, the steps can part.
    for name, weight in alone.items():
        torch.testing.assert_close(together[name], weight, rtol=0, atol=0.002)
    directory = Path(found["model"]).parent
    assert {*os.listdir(directory)} == {"mnist_ddp.pt", "metrics.jsonl", "checkpoints"}
    checkpoints = ["best.pt", "epoch-0001-step-000000.pt", "epoch-0002-step-000000.pt"]
    assert sorted(os.listdir(directory / "checkpoints")) == checkpoints


STEPS = """
import mnist_ddp
from training.checkpoint import Run
from training.data import GlobalBatchSampler, load_dataset, normalise
from training.progress import Progress
from torch.nn.parallel import DistributedDataParallel

data = load_dataset(Path({data!r}))
cpu = torch.device("cpu")
with process_group(os.environ, use_gpu=False, timeout=600) as world:
    torch.manual_seed(1)
    network = mnist_ddp.build_model().double()
    model = DistributedDataParallel(network)
    sampler = GlobalBatchSampler(130, 32, world, 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1)
    run = Run(network, optimizer, schedule, {{}}, world)
    batches = mnist_ddp.device_batches(normalise(data.train_images, cpu).double(), data.train_labels, sampler)
    mnist_ddp.train_epoch(model, run, batches, Progress("", 5, enabled=False), StopSignals(world))
    loss = run.position.loss_sum / run.position.samples
    right = mnist_ddp.accuracy(run, normalise(data.test_images, cpu).double(), data.test_labels)
    if world.rank == 0:
        torch.save([loss, right, network.state_dict()], {result!r})
"""


def test_training_takes_the_steps_of_the_mean_loss_over_the_global_batches(small_mnist, tmp_path):
    """In double precision, against a loop without ranks; SGD shows a gradient that is off by a factor."""
    run_code(3, STEPS.format(data=str(small_mnist), result=str(tmp_path / "result")))
    loss, right, weights = torch.load(tmp_path / "result", weights_only=True)

    data = load_dataset(small_mnist)
    images = normalise(data.train_images, torch.device("cpu")).double()
    labels = data.train_labels
    torch.manual_seed(1)
    network = mnist_ddp.build_model().double()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    losses = []
    for batch, _ in GlobalBatchSampler(130, 32, World(0, 1, torch.device("cpu")), 3):
        mean_loss = F.cross_entropy(network(images[batch]), labels[batch])
        optimizer.zero_grad()
        mean_loss.backward()
        optimizer.step()
        losses += [mean_loss.item()] * len(batch)

    assert loss == pytest.approx(sum(losses) / 130, rel=1e-9)
    for name, weight in network.state_dict().items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-9, atol=1e-9)
    scores = network(normalise(data.test_images, torch.device("cpu")).double())
    assert right * 31 / 100 == pytest.approx(int((scores.argmax(dim=1) == data.test_labels).sum()))


def test_alone_in_any_directory_it_learns_the_digits_set_and_reports_it(run_alone, tmp_path):
    payload = shutil.copytree(PAYLOAD, tmp_path / "payload", ignore=shutil.ignore_patterns("__pycache__"))
    for path in [payload, *payload.rglob("*")]:
        path.chmod(0o555)
    (tmp_path / "elsewhere").mkdir()
    files = sorted(path for path in payload.rglob("*") if path.is_file())
    rank = run_alone(script=payload / "mnist_ddp.py", cwd=tmp_path / "elsewhere", SLURM_PROCID="1", SLURM_NTASKS="2")
    assert rank.stderr == ""
    assert rank.stdout.startswith("world size 1, ")
    assert ", data generated digits: 6000 training and 1000 test images\n" in rank.stdout
    assert float(re.search(r"^test accuracy: (.*) %$", rank.stdout, re.M)[1]) > 97
    assert "model written" not in rank.stdout
    assert os.listdir(tmp_path / "elsewhere") == []
    assert sorted(p for p in payload.rglob("*") if p.is_file() and p.suffix != ".pyc") == files


@pytest.mark.parametrize("lacking", [(0, 1), (1,)])
def test_data_that_some_ranks_lack_ends_all_with_one_line(small_mnist, tmp_path, lacking):
    roots = [{"MNIST_ROOT": str(tmp_path if rank in lacking else small_mnist)} for rank in (0, 1)]
    ranks = run_ranks(2, environments=roots, status=1)
    assert [rank.stdout for rank in ranks] == [""] * 2
    first = lacking[0]
    assert re.fullmatch(rf"rank {first}: {tmp_path}/train-images-.*: cannot be read .*\n", ranks[first].stderr)
    assert ranks[1 - first].stderr == ""


def test_a_modelpath_that_cannot_be_made_is_reported_before_the_training(run_alone, tmp_path):
    (tmp_path / "model").write_text("a file")
    rank = run_alone("--modelpath", "model", status=1)
    assert rank.stdout == ""
    assert rank.stderr.startswith("rank 0: model/checkpoints: cannot be written (Not a directory). ")


@pytest.mark.parametrize(("number", "timeout"), [(signal.SIGKILL, 3600), (signal.SIGSTOP, 15)])
def test_a_rank_that_is_killed_or_does_not_answer_takes_the_others_with_it(small_mnist, number, timeout):
    ranks = launch(2, PAYLOAD / "mnist_ddp.py", "--data", small_mnist, "--epochs", 1000000, "--timeout", timeout)
    ranks.wait_until_said("epoch 1/1000000")
    ranks.signal(1, number)
    ranks.wait_until(lambda: False)  # rank 0 ends
    has_ended = not ranks.is_alive()
    ranks.signal(1, signal.SIGKILL)
    first, _ = ranks.wait()
    assert has_ended and first.status == 1 and first.stderr.splitlines()[-1].startswith("rank 0: RuntimeError: ")


@pytest.fixture
def no_torch(tmp_path):
    """The environment of a Python in which torch cannot be imported."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    return {"PYTHONPATH": str(tmp_path)}


def test_help_answers_without_waiting_for_torch(run_alone, no_torch):
    rank = run_alone("--help", **no_torch)
    assert rank.stderr == "" and "--modelpath" in rank.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--warmup", "3"], "--warmup must be from 0 to below 3, the whole training, found 3.0"),
        (["--validation", "1"], "argument --validation: must be a number above 0 and up to 0.99, found 1"),
        (["--modelpath", ""], "argument --modelpath: is empty. Set the variable that names it"),
        (["--modelpath", "x", "--wandb", ""], "argument --wandb: is empty. Set the variable that names it"),
        (["--model", "x"], "unrecognized arguments: --model x"),
        (["--restart"], "--restart needs --modelpath"),
    ],
)
def test_an_option_that_makes_no_sense_is_one_line_and_status_2(run_alone, no_torch, arguments, complaint):
    rank = run_alone(*arguments, **no_torch, status=2)
    assert rank.stdout == ""
    assert rank.stderr == f"mnist_ddp.py: {complaint}. See --help\n"


def test_mnist_root_names_the_data_and_the_option_comes_before_it(monkeypatch):
    monkeypatch.setenv("MNIST_ROOT", "/data/mnist")
    assert mnist_ddp.parse_arguments([]).data == Path("/data/mnist")
    assert mnist_ddp.parse_arguments(["--data", "other"]).data == Path("other")
    monkeypatch.setenv("MNIST_ROOT", "")
    assert mnist_ddp.parse_arguments([]).data is None


def test_a_copy_without_the_ladder_names_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "ladder.mnist_single", None)
    with pytest.raises(TrainingError, match=r"^no data\. Name them with --data, or copy ladder/"):
        mnist_ddp.load_data(None)


@pytest.mark.parametrize(
    ("number", "arguments", "status"),
    [
        (signal.SIGUSR1, ["--modelpath", "run"], 75),
        (signal.SIGUSR1, [], -signal.SIGUSR1),
        (signal.SIGTERM, ["--modelpath", "run"], -signal.SIGTERM),  # srun sends it where another rank failed
        (signal.SIGINT, ["--modelpath", "run"], 130),
        (signal.SIGINT, [], 130),
    ],
)
def test_a_signal_while_torch_is_imported_ends_the_run_with_its_status(run_alone, tmp_path, number, arguments, status):
    (tmp_path / "torch.py").write_text(f"import os, time; os.kill(os.getpid(), {number.value}); time.sleep(600)")
    rank = run_alone(*arguments, PYTHONPATH=str(tmp_path), status=status)
    assert rank.stdout == ""
    assert rank.stderr == (f"mnist_ddp.py: {number.name}: stopped, nothing was saved\n" if status > 0 else "")


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 235])
def test_the_learning_rate_reaches_its_peak_once_and_falls_to_0(steps):
    factors = [mnist_ddp.learning_rate_factor(step, steps, steps // 4) for step in range(steps + 1)]
    peak = factors.index(1)
    assert factors.count(1) == 1 and factors[-1] == 0
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
    assert [mnist_ddp.learning_rate_factor(step, 40, 4) for step in range(5)] == [0.2, 0.4, 0.6, 0.8, 1]


@pytest.mark.parametrize(
    ("arguments", "rise"),
    [
        (["--batch-size", "40"], 75),
        (["--batch-per-rank", "10"], 75),
        (["--batch-size", "40", "--warmup", "0.5"], 50),
        (["--batch-size", "40", "--warmup", "0"], 0),
    ],
)
def test_the_batch_is_given_whole_or_by_rank_and_the_learning_rate_rises(arguments, rise):
    options = mnist_ddp.parse_arguments(["--epochs", "3", "--lr", "0.02", *arguments])
    run, sampler = mnist_ddp.set_up(options, 4000, World(1, 4, torch.device("cpu")))
    assert sampler.batch_size == 40 and len(sampler) == 100
    assert run.schedule.get_last_lr() == [pytest.approx(0.02 / (rise + 1))]
