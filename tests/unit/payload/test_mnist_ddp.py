"""mnist_ddp.py: one training, whatever the number of ranks."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import forked_ranks
import mnist_ddp
import pytest
import torch
import torch.nn.functional as F
from training.checkpoint import Checkpoints, Position, read
from training.data import GlobalBatchSampler, digits_set, load_dataset, normalise
from training.distributed import World, process_group
from training.metrics import read_epochs
from training.stopping import StopSignals

OUTPUT = re.compile(
    r"""world size (?P<size>\d+), backend gloo, device cpu, torch \S+, data \S+: 130 training and 31 test images
epoch 1/2  loss (?P<loss>\d\.\d{4})  test accuracy \d+\.\d\d %  images/s \d+
epoch 2/2  loss (?P<last_loss>\d\.\d{4})  test accuracy (?P<last_accuracy>\d+\.\d\d) %  images/s \d+
(?:no \S+/curves\.png .*
)?test accuracy: (?P<accuracy>\d+\.\d\d) %
training time: \d+\.\d s
model written to (?P<model>\S+/mnist_ddp\.pt)
"""
)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory, write_mnist, run_ranks):
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
def test_rank_0_prints_the_lines_that_people_and_tests_look_for(worlds, size):
    assert outcome(worlds[size]), worlds[size][0].stdout
    assert int(outcome(worlds[size])["size"]) == size


@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_ranks_end_well_and_only_rank_0_prints(worlds, size):
    assert [rank.status for rank in worlds[size]] == [0] * size
    assert [rank.stderr for rank in worlds[size]] == [""] * size
    assert [rank.stdout for rank in worlds[size][1:]] == [""] * (size - 1)


@pytest.mark.parametrize("size", [2, 3])
def test_the_loss_is_that_of_all_ranks_samples(worlds, size):
    alone, together = outcome(worlds[1]), outcome(worlds[size])
    assert float(together["loss"]) == pytest.approx(float(alone["loss"]), abs=0.001)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_loss_falls_and_the_last_accuracy_is_the_one_of_the_model(worlds, size):
    found = outcome(worlds[size])
    assert float(found["last_loss"]) < float(found["loss"])
    assert found["accuracy"] == found["last_accuracy"]


@pytest.mark.parametrize("size", [2, 3])
def test_the_model_does_not_depend_on_the_number_of_ranks(worlds, size):
    alone = torch.load(outcome(worlds[1])["model"], weights_only=True)
    together = torch.load(outcome(worlds[size])["model"], weights_only=True)
    # Where two pixels of a pooling window are equal but for rounding, the steps can part.
    for name, weight in alone.items():
        torch.testing.assert_close(together[name], weight, rtol=0, atol=0.002)


@pytest.mark.parametrize("size", [1, 3])
def test_the_model_is_that_of_the_network_without_the_wrapper(worlds, size):
    mnist_ddp.build_model().load_state_dict(torch.load(outcome(worlds[size])["model"], weights_only=True))


def test_rank_0_writes_the_model_the_metrics_and_a_checkpoint_after_each_epoch(worlds):
    directory = Path(outcome(worlds[3])["model"]).parent
    assert {*os.listdir(directory)} - {"curves.png"} == {"mnist_ddp.pt", "metrics.jsonl", "checkpoints"}
    assert sorted(os.listdir(directory / "checkpoints")) == [
        "best.pt", "epoch-0001-step-000000.pt", "epoch-0002-step-000000.pt",
    ]  # fmt: skip


STEPS = """
import mnist_ddp, os, torch
from pathlib import Path
from training.checkpoint import Run
from training.data import GlobalBatchSampler, load_dataset, normalise
from training.distributed import process_group
from training.progress import Progress
from training.stopping import StopSignals
from torch.nn.parallel import DistributedDataParallel

data = load_dataset(Path({data!r}))
cpu = torch.device("cpu")
with process_group(os.environ, use_gpu=False, timeout=60) as world:
    torch.manual_seed(1)
    network = mnist_ddp.build_model().double()
    model = DistributedDataParallel(network)
    sampler = GlobalBatchSampler(130, 32, rank=world.rank, world_size=world.size, seed=3, device=cpu)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1)
    run = Run(network, optimizer, schedule, {{}}, world)
    batches = mnist_ddp.{batches}(normalise(data.train_images, cpu).double(), data.train_labels, sampler)
    mnist_ddp.train_epoch(model, run, batches, Progress("", 5, enabled=False), StopSignals(world))
    loss = run.position.loss_sum / run.position.samples
    tally = mnist_ddp.evaluate(network, normalise(data.test_images, cpu).double(), data.test_labels, world)
    if world.rank == 0:
        torch.save([loss, tally, network.state_dict()], {result!r})
"""


@pytest.mark.parametrize("batches", ["device_batches", "plain_batches"])
def test_training_takes_the_steps_of_the_mean_loss_over_the_global_batches(small_mnist, tmp_path, run_code, batches):
    """In double precision, against a loop without ranks; SGD shows a gradient that is off by a factor."""
    ranks = run_code(3, STEPS.format(data=str(small_mnist), result=str(tmp_path / "result"), batches=batches))
    assert [rank.status for rank in ranks] == [0, 0, 0], ranks[-1].stderr
    loss, (correct, total), weights = torch.load(tmp_path / "result", weights_only=True)

    data = load_dataset(small_mnist)
    images, labels = normalise(data.train_images, torch.device("cpu")).double(), data.train_labels
    torch.manual_seed(1)
    network = mnist_ddp.build_model().double()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    losses = []
    for batch, _ in GlobalBatchSampler(130, 32, rank=0, world_size=1, seed=3, device=torch.device("cpu")):
        mean_loss = F.cross_entropy(network(images[batch]), labels[batch])
        optimizer.zero_grad()
        mean_loss.backward()
        optimizer.step()
        losses += [mean_loss.item()] * len(batch)

    assert loss == pytest.approx(sum(losses) / 130, rel=1e-9)
    for name, weight in network.state_dict().items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-9, atol=1e-9)
    scores = network(normalise(data.test_images, torch.device("cpu")).double())
    assert total == 31
    assert correct == (scores.argmax(dim=1) == data.test_labels).sum()


def test_the_same_run_again_gives_the_same_model(worlds, run_ranks, small_mnist, tmp_path):
    run_ranks(1, "--data", small_mnist, "--epochs", 2, "--batch-size", 32, "--modelpath", tmp_path)
    before = torch.load(outcome(worlds[1])["model"], weights_only=True)
    again = torch.load(tmp_path / "mnist_ddp.pt", weights_only=True)
    assert all(torch.equal(before[name], again[name]) for name in before)


def test_alone_in_any_directory_it_learns_the_digits_set_and_says_so(payload, run_alone, tmp_path):
    payload = shutil.copytree(payload, tmp_path / "payload", ignore=shutil.ignore_patterns("__pycache__"))
    for path in [payload, *payload.rglob("*")]:
        path.chmod(0o555)
    (tmp_path / "elsewhere").mkdir()
    files = sorted(path for path in payload.rglob("*") if path.is_file())
    rank = run_alone(script=payload / "mnist_ddp.py", cwd=tmp_path / "elsewhere", SLURM_PROCID="1", SLURM_NTASKS="2")
    assert rank.status == 0 and rank.stderr == ""
    assert rank.stdout.startswith("world size 1, ")
    assert "neither --data nor MNIST_ROOT names the MNIST files: the digits set is drawn here\n" in rank.stdout
    assert float(re.search(r"^test accuracy: (.*) %$", rank.stdout, re.M)[1]) > 97
    assert "model written" not in rank.stdout
    assert os.listdir(tmp_path / "elsewhere") == []
    assert sorted(p for p in payload.rglob("*") if p.is_file() and p.suffix != ".pyc") == files


def test_mnist_root_names_the_data_and_the_option_comes_before_it(monkeypatch):
    monkeypatch.setenv("MNIST_ROOT", "/data/mnist")
    assert mnist_ddp.parse_arguments([]).data == Path("/data/mnist")
    assert mnist_ddp.parse_arguments(["--data", "other"]).data == Path("other")
    monkeypatch.setenv("MNIST_ROOT", "")
    assert mnist_ddp.parse_arguments([]).data is None


def test_data_that_is_not_there_ends_all_ranks_with_one_line(run_ranks, tmp_path):
    ranks = run_ranks(2, "--data", tmp_path)
    assert [rank.status for rank in ranks] == [1, 1]
    assert re.fullmatch(rf"rank 0: {tmp_path} holds no train-images-.*\n", ranks[0].stderr)
    assert ranks[1].stderr == "" and ranks[0].stdout == ranks[1].stdout == ""


def test_data_that_only_rank_1_lacks_is_reported_by_rank_1(run_ranks, small_mnist, tmp_path):
    ranks = run_ranks(2, environments=[{"MNIST_ROOT": str(small_mnist)}, {"MNIST_ROOT": str(tmp_path)}])
    assert [rank.status for rank in ranks] == [1, 1]
    assert ranks[0].stderr == "" and ranks[1].stderr.startswith(f"rank 1: {tmp_path} holds no ")


def test_a_modelpath_that_cannot_be_made_is_reported_before_the_training(run_alone, tmp_path):
    (tmp_path / "model").write_text("a file")
    rank = run_alone("--modelpath", "model")
    assert rank.status == 1 and rank.stdout == ""
    assert rank.stderr.startswith("rank 0: model: cannot be written (File exists); ")


def test_a_rank_that_is_killed_takes_the_others_with_it(start_ranks, small_mnist):
    ranks = start_ranks(2, "--data", small_mnist, "--epochs", 100000, "--timeout", "60")
    ranks.processes[0].stdout.readline()
    assert ranks.processes[0].stdout.readline().startswith("epoch 1/100000")
    ranks.processes[1].kill()
    assert ranks.processes[0].wait(timeout=60) == 1
    assert ranks.wait()[0].stderr.splitlines()[-1].startswith("rank 0: RuntimeError: ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is visible here")
def test_gpu_without_a_gpu_is_one_sentence(run_alone):
    rank = run_alone("--gpu")
    assert rank.status == 1 and rank.stdout == ""
    assert re.fullmatch(r"rank 0: --gpu was given but torch \S+ sees no GPU; .*\n", rank.stderr)


@pytest.fixture
def no_torch(tmp_path):
    """The environment of a Python in which torch cannot be imported."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    return {"PYTHONPATH": str(tmp_path)}


def test_help_answers_without_waiting_for_torch(run_alone, no_torch):
    rank = run_alone("--help", **no_torch)
    assert rank.status == 0 and rank.stderr == ""
    for option in ("--gpu", "--modelpath", "--epochs", "--batch-size", "--lr", "--seed", "--data", "--timeout",
                   "--batch-per-rank", "--scale-lr", "--warmup", "--plain", "--compile", "--bf16", "--keep",
                   "--restart", "--tensorboard", "--wandb"):  # fmt: skip
        assert option in rank.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--epochs", "0"], "--epochs must be finite and above 0, found 0"),
        (["--epochs", "1.5"], "argument --epochs: invalid int value: '1.5'"),
        (["--batch-size", "-8"], "--batch-size must be finite and above 0, found -8"),
        (["--lr", "nan"], "--lr must be finite and above 0, found nan"),
        (["--timeout", "inf"], "--timeout must be finite and above 0, found inf"),
        (["--seed", "-1"], "--seed must be from 0 to 2^32 - 1, found -1"),
        (["--seed", "4294967296"], "--seed must be from 0 to 2^32 - 1, found 4294967296"),
        (["--keep", "0"], "--keep must be finite and above 0, found 0"),
        (["--warmup", "3"], "--warmup must be from 0 to below --epochs, found 3.0"),
        (["--validation", "1"], "--validation must be above 0 and below 1, found 1.0"),
        (["--download"], "--download needs --data or MNIST_ROOT"),
        (["--restart"], "--restart needs --modelpath"),
        (["--wandb", "mnist"], "--wandb needs --modelpath"),
        (["--epoch-count", "3"], "unrecognized arguments: --epoch-count 3"),
    ],
)
def test_an_option_that_makes_no_sense_is_one_line_and_status_2(run_alone, no_torch, arguments, complaint):
    rank = run_alone(*arguments, **no_torch)
    assert rank.status == 2 and rank.stdout == ""
    assert rank.stderr == f"mnist_ddp.py: {complaint}; see --help\n"


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
    (tmp_path / "torch.py").write_text(f"import os, time; os.kill(os.getpid(), {number.value}); time.sleep(60)")
    rank = run_alone(*arguments, PYTHONPATH=str(tmp_path))
    assert rank.status == status and rank.stdout == ""
    assert rank.stderr == (f"mnist_ddp.py: {number.name}: stopped, nothing was saved\n" if status > 0 else "")


def test_a_network_that_cannot_be_compiled_is_one_sentence_before_the_training(small_mnist, monkeypatch, capsys):
    from torch._inductor.exc import InvalidCxxCompiler

    def fail(*_):
        raise InvalidCxxCompiler

    monkeypatch.setattr(mnist_ddp, "warm_up", fail)
    with pytest.raises(SystemExit) as end:
        mnist_ddp.main(mnist_ddp.parse_arguments(["--data", str(small_mnist), "--compile"]))
    assert re.fullmatch(
        r"rank 0: --compile: the network cannot be compiled \(.*C\+\+ compiler.*\). Put a C\+\+ .* leave --compile out",
        end.value.code,
    )
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 235])
def test_the_learning_rate_reaches_its_peak_once_and_falls_to_0(steps):
    factors = [mnist_ddp.learning_rate_factor(step, steps) for step in range(steps + 1)]
    peak = factors.index(1)
    assert factors.count(1) == 1 and factors[-1] == 0
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)


def test_a_warm_up_of_one_epoch_in_four_is_what_is_done_without_the_option():
    assert [mnist_ddp.learning_rate_factor(step, 40, 10) for step in range(40)] == [
        mnist_ddp.learning_rate_factor(step, 40) for step in range(40)
    ]
    assert mnist_ddp.learning_rate_factor(0, 40, 0) == 1
    assert [mnist_ddp.learning_rate_factor(step, 40, 4) for step in range(5)] == [0.2, 0.4, 0.6, 0.8, 1]


@pytest.mark.parametrize(
    ("arguments", "batch_size", "lr", "first_lr"),
    [
        (["--batch-size", "40", "--lr", "0.02"], 40, 0.02, 0.02 / (75 + 1)),
        (["--batch-per-rank", "10", "--lr", "0.02"], 40, 0.02, 0.02 / (75 + 1)),
        (["--batch-per-rank", "10", "--lr", "0.02", "--scale-lr"], 40, 0.08, 0.08 / (75 + 1)),
        (["--batch-size", "40", "--lr", "0.02", "--warmup", "0.5"], 40, 0.02, 0.02 / (50 + 1)),
        (["--batch-size", "40", "--lr", "0.02", "--warmup", "0"], 40, 0.02, 0.02),
    ],
)
def test_the_batch_and_the_learning_rate_can_be_scaled_with_four_ranks(arguments, batch_size, lr, first_lr):
    options = mnist_ddp.parse_arguments(["--epochs", "3", *arguments])
    run, sampler = mnist_ddp.set_up(options, 4000, World(1, 4, torch.device("cpu")))
    assert sampler.batch_size == batch_size and len(sampler) == 100
    assert run.settings["learning rate"] == pytest.approx(lr)
    assert run.schedule.get_last_lr() == [pytest.approx(first_lr)]


@pytest.mark.parametrize("batch_size", [1000, 2000, 4000])
def test_a_warm_up_of_nearly_all_steps_leaves_the_last_to_come_down(batch_size):
    options = mnist_ddp.parse_arguments(["--epochs", "1", "--warmup", "0.9", "--batch-size", str(batch_size)])
    run, sampler = mnist_ddp.set_up(options, 4000, World(0, 1, torch.device("cpu")))
    for _ in range(len(sampler)):
        assert run.schedule.get_last_lr()[0] > 0
        run.optimizer.step()
        run.schedule.step()
    assert run.schedule.get_last_lr() == [0]


@pytest.fixture
def alone():
    """A world of one, and signals that do what they always do."""
    with process_group({}, use_gpu=False, timeout=10) as world:
        yield world, StopSignals(world, enabled=False)


def test_training_shuffles_anew_for_each_epoch(monkeypatch, small_mnist, alone):
    orders = []

    def note_order(_model, run, batches, _progress, _stop, **_options):
        labels = [labels for _, labels, _ in batches]
        orders.append(torch.cat(labels).tolist())
        run.position.step, run.position.samples, run.position.epoch_seconds = len(labels), 130, 1

    monkeypatch.setattr(mnist_ddp, "train_epoch", note_order)
    mnist_ddp.train(mnist_ddp.parse_arguments(["--data", str(small_mnist), "--epochs", "3"]), *alone)
    assert len(orders) == 3 and orders[0] != orders[1] != orders[2] != orders[0]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])


def test_the_speed_of_an_epoch_that_was_interrupted_is_that_of_all_its_steps(monkeypatch, small_mnist, tmp_path, alone):
    """The first steps after a start are slow, and there may be few of them."""
    line = ["--data", str(small_mnist), "--epochs", "1", "--batch-size", "32", "--modelpath", str(tmp_path)]
    options = mnist_ddp.parse_arguments(line)
    run, _ = mnist_ddp.set_up(options, 130, alone[0])
    for _ in range(3):
        run.optimizer.step()
        run.schedule.step()
    run.position = Position(step=3, samples=96, seconds=3.0, epoch_seconds=3.0)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.prepare()
    run.save(checkpoints)
    del checkpoints  # and its lock

    def go_on(_model, run, *_, **_options):
        for name, value in {"step": 5, "samples": 130, "seconds": 13.0, "epoch_seconds": 13.0}.items():
            setattr(run.position, name, value)

    monkeypatch.setattr(mnist_ddp, "train_epoch", go_on)
    mnist_ddp.train(options, *alone)
    (line,) = read_epochs(tmp_path / "metrics.jsonl")
    assert (line["seconds"], line["images_per_second"]) == (13, 10)


def test_a_long_epoch_reports_how_far_it_is(monkeypatch, capsys, alone):
    monkeypatch.setattr("training.progress.LINE_SECONDS", 0)
    monkeypatch.setattr(mnist_ddp, "load_dataset", lambda *_where: digits_set())
    mnist_ddp.train(mnist_ddp.parse_arguments(["--epochs", "1", "--batch-size", "2000"]), *alone)
    lines = [line for line in capsys.readouterr().out.splitlines() if "(rank 0)" in line]
    assert [re.sub(r"\d\.\d{4}", "2.3", line) for line in lines] == [
        f"epoch 1/1  {share} %  loss 2.3 (rank 0)" for share in (33, 66, 100)
    ]


def test_the_textbooks_batches_give_the_same_weights_and_bfloat16_nearly_the_same_losses(small_mnist, tmp_path):
    line = ("--data", small_mnist, "--epochs", 2, "--batch-size", 32, "--modelpath")
    losses = {}
    for option in ("--seed=0", "--plain", "--bf16"):
        (rank,) = forked_ranks.train(1, *line, tmp_path / option, option)
        assert rank.status == 0, rank.stderr
        losses[option] = [float(loss) for loss in re.findall(r"loss (\S+) ", rank.stdout)]
    assert equal(weights(tmp_path / "--plain"), weights(tmp_path / "--seed=0"))
    assert losses["--bf16"] == pytest.approx(losses["--seed=0"], abs=0.05)
    assert not equal(weights(tmp_path / "--bf16"), weights(tmp_path / "--seed=0"))


def weights(directory):
    return torch.load(directory / "mnist_ddp.pt", weights_only=True)


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


#: 65 steps an epoch, so that ranks which agree at every 16th stop in the middle of one.
SHORT = ("--epochs", 6, "--batch-size", 2, "--lr", 0.002)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory, write_mnist):
    """A training of one rank without an interruption, and the same begun by 4 ranks, stopped, and so on by 2 and 1."""
    root = tmp_path_factory.mktemp("interrupted")
    arguments = ("--data", write_mnist(root / "mnist", 130, 31), *SHORT, "--modelpath")
    through = forked_ranks.train(1, *arguments, root / "through")
    parts = []
    for size, strike in ((4, (3, "epoch 2/6", 10)), (2, (0, "epoch 4/6", 20))):
        parts.append(forked_ranks.Forks(size, *arguments, root / "parts", strike=strike).wait())
    parts.append(forked_ranks.train(1, *arguments, root / "parts"))
    return root, arguments, through, parts


def test_ranks_that_are_asked_to_stop_end_with_status_75_and_a_line(interrupted):
    root, _, _, parts = interrupted
    assert [[rank.status for rank in ranks] for ranks in parts] == [[75] * 4, [75] * 2, [0]]
    assert [rank.stderr for ranks in parts for rank in ranks] == [""] * 7
    # The ranks ask each other at each 16th step of a start, counting the end of an epoch as one.
    for ranks, epochs, steps in zip(parts, (1, 3), (80 - 66, 144 - 52 - 66)):
        assert ranks[0].stdout.splitlines()[-1] == (
            f"SIGUSR1: stopped after {epochs} epochs and {steps} steps, saved in {root}/parts/checkpoints/"
            f"epoch-000{epochs}-step-0000{steps}.pt; the same command goes on from there"
        )


def test_the_next_start_goes_on_where_the_last_one_stopped(interrupted):
    _, _, _, parts = interrupted
    for before, after, size in zip(parts, parts[1:], (2, 1)):
        place = re.search(r"after (.* steps), saved in (\S+);", before[0].stdout)
        assert f"world size {size}," in after[0].stdout
        assert f"going on after {place[1]}, from {place[2]}\n" in after[0].stdout
    lines = [line for ranks in parts for line in ranks[0].stdout.splitlines() if "images/s" in line]
    assert [line.split()[1] for line in lines] == [f"{epoch}/6" for epoch in range(1, 7)]


def test_four_then_two_then_one_rank_end_where_one_rank_ends_in_one_go(interrupted):
    root, _, through, parts = interrupted
    for name, weight in weights(root / "through").items():
        # 1e-7 was seen; 1e-1 where the optimizer began anew.
        assert (weights(root / "parts")[name] - weight).norm() < 1e-4 * weight.norm()
    losses = [
        [float(loss) for loss in re.findall(r"loss (\S+) ", "".join(rank.stdout for rank in ranks))]
        for ranks in (through, [part[0] for part in parts])
    ]
    assert losses[1] == pytest.approx(losses[0], abs=0.001)


def test_the_metrics_have_each_epoch_once_with_the_ranks_that_ended_it(interrupted):
    root, _, _, _ = interrupted
    lines = [json.loads(line) for line in (root / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["epoch"], line["world_size"]) for line in lines] == list(zip(range(1, 7), (4, 2, 2, 1, 1, 1)))
    best = torch.load(root / "parts" / "checkpoints" / "best.pt", weights_only=True)["position"]
    assert best["accuracy"] == max(line["accuracy"] for line in lines)


def test_a_run_that_is_finished_says_so_and_the_same_accuracy(interrupted):
    root, arguments, (before,), _ = interrupted
    model = weights(root / "through")
    (rank,) = forked_ranks.train(1, *arguments, root / "through")
    assert rank.status == 0 and "\nnothing is left to train\n" in rank.stdout and "epoch 1/6" not in rank.stdout
    assert re.search("test accuracy: .*", rank.stdout)[0] == re.search("test accuracy: .*", before.stdout)[0]
    assert "training time" in before.stdout and "training time" not in rank.stdout
    assert equal(weights(root / "through"), model)


def test_images_that_are_held_out_tell_which_epoch_is_best_and_the_test_comes_at_the_end(small_mnist, tmp_path):
    line = ("--data", small_mnist, "--epochs", 3, "--batch-size", 16, "--validation", 0.2, "--modelpath", tmp_path)
    said = [forked_ranks.train(size, *line, "--restart")[0].stdout for size in (1, 2)]
    for output in said:
        epochs = re.findall(r"^epoch ./3  loss \S+  validation accuracy (\S+) %", output, re.MULTILINE)
        assert len(epochs) == 3
        # of 26 and of 31 images
        assert [float(accuracy) for accuracy in epochs] == pytest.approx(
            [round(float(accuracy) * 0.26) / 0.26 for accuracy in epochs], abs=0.01)  # fmt: skip
        test = float(re.search(r"^test accuracy: (\S+) %", output, re.MULTILINE)[1])
        assert test == pytest.approx(round(test * 0.31) / 0.31, abs=0.01)
    metrics = [json.loads(line)["accuracy"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [f"{accuracy:.2f}" for accuracy in metrics] == epochs
    (again,) = forked_ranks.train(1, *line)
    assert "nothing is left" in again.stdout and f"test accuracy: {test:.2f} %" in again.stdout
    (other,) = forked_ranks.train(1, *line[:-4], "--modelpath", tmp_path)
    assert "validation 0.2 (now None)" in other.stderr


def test_a_resume_with_other_options_is_refused_in_one_sentence_by_one_rank(interrupted):
    root, arguments, _, _ = interrupted
    ranks = forked_ranks.train(2, *arguments, root / "through", "--lr", 0.5, "--seed", 3)
    assert [rank.status for rank in ranks] == [1, 1] and ranks[1].stderr == ""
    assert re.fullmatch(
        rf"rank 0: {root}/through/checkpoints/epoch-0006-step-000000.pt: made with learning rate 0.002 \(now 0.5\), "
        r"seed 0 \(now 3\); .*--restart\n", ranks[0].stderr)  # fmt: skip


def test_ctrl_c_saves_and_ends_with_status_130_and_the_next_start_goes_on(interrupted, tmp_path):
    _, arguments, _, _ = interrupted
    ranks = forked_ranks.Forks(1, *arguments, tmp_path)
    ranks.wait_until_said("epoch 1/6")
    ranks.signal(0, signal.SIGINT)
    (rank,) = ranks.wait()
    assert rank.status == 130 and rank.stderr == ""
    assert re.match(r"SIGINT: stopped after .* saved in .*; the same command goes on", rank.stdout.splitlines()[-1])
    (rank,) = forked_ranks.train(1, *arguments, tmp_path)
    assert rank.status == 0 and "going on after" in rank.stdout


def test_a_resume_with_other_data_is_refused_and_the_same_in_another_place_is_not(
    interrupted, write_mnist, tmp_path
):
    root, arguments, _, _ = interrupted
    same, other = shutil.copytree(root / "mnist", tmp_path / "same"), write_mnist(tmp_path / "other", 130, 31)
    path = other / "train-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    for data, status in ((same, 0), (other, 1)):
        (rank,) = forked_ranks.train(1, "--data", data, *arguments[2:], root / "through")
        assert rank.status == status
    assert re.fullmatch(r"rank 0: \S+.pt: made with other data; name the same data .*--restart\n", rank.stderr)


def test_two_ranks_end_with_the_same_bits_after_an_interruption(interrupted, tmp_path):
    _, arguments, _, _ = interrupted
    forked_ranks.train(2, *arguments, tmp_path / "through")
    stopped = forked_ranks.Forks(2, *arguments, tmp_path / "parts", strike=(1, "epoch 3/6", 7)).wait()
    assert [rank.status for rank in stopped] == [75, 75]
    forked_ranks.train(2, *arguments, tmp_path / "parts")
    assert equal(weights(tmp_path / "through"), weights(tmp_path / "parts"))


def test_restart_begins_anew(small_mnist, tmp_path):
    line = ("--data", small_mnist, "--batch-size", 32, "--modelpath", tmp_path / "run")
    forked_ranks.train(1, *line, "--epochs", 3)
    (rank,) = forked_ranks.train(1, *line, "--epochs", 2, "--restart")
    assert rank.status == 0 and "going on" not in rank.stdout and "epoch 1/2" in rank.stdout
    names = sorted(os.listdir(tmp_path / "run" / "checkpoints"))
    assert names == ["best.pt", "epoch-0001-step-000000.pt", "epoch-0002-step-000000.pt"]


def test_a_run_that_can_save_nothing_ends_as_signals_end_programs(small_mnist):
    ranks = forked_ranks.Forks(1, "--data", small_mnist, "--epochs", 1000)
    ranks.wait_until_said("epoch 1/")
    ranks.signal(0, signal.SIGTERM)
    assert ranks.wait()[0].status == -signal.SIGTERM


def test_fifty_kills_at_any_moment_lose_nothing(small_mnist, tmp_path):
    """During training, saving and stopping; each next start goes on, and the end is the uninterrupted run's."""
    line = ("--data", small_mnist, "--epochs", 12, "--batch-size", 8, "--keep", 2, "--modelpath")
    forked_ranks.train(1, *line, tmp_path / "through")
    seed = random.SystemRandom().randrange(2**32)
    print(f"random.Random({seed})")  # pytest shows it where this fails
    moments = random.Random(seed)  # noqa: S311
    kills = ends = 0
    reached = (0, 0)
    while kills < 50:
        ranks = forked_ranks.Forks(1, *line, tmp_path / "killed")
        ranks.wait_until_said("world size 1")
        time.sleep(moments.uniform(0, 0.2))
        during = moments.choice(["training", "stopping", "saving"])
        if during == "stopping":
            ranks.signal(0, signal.SIGTERM)
        elif during == "saving":
            changed = modified(tmp_path / "killed" / "checkpoints")
            while modified(tmp_path / "killed" / "checkpoints") == changed and ranks.processes[0].is_alive():
                pass  # a file is written in less time than a pause would take
        if moments.random() < 0.5:
            time.sleep(moments.uniform(0, 0.01))
        ranks.kill()
        (rank,) = ranks.wait()
        assert rank.status in (0, 75, -signal.SIGKILL), rank.stderr
        kills += rank.status == -signal.SIGKILL
        before, reached = reached, position(tmp_path / "killed")
        assert reached >= before, "no start lost what was saved"
        if rank.status == 0:
            ends += 1
            assert equal(weights(tmp_path / "killed"), weights(tmp_path / "through"))
            shutil.rmtree(tmp_path / "killed")
            reached = (0, 0)
    (rank,) = forked_ranks.train(1, *line, tmp_path / "killed")
    assert rank.status == 0, rank.stderr
    assert equal(weights(tmp_path / "killed"), weights(tmp_path / "through"))
    assert ends < 50
    for directory in ("", "checkpoints"):
        assert {*os.listdir(tmp_path / "killed" / directory)} - {"curves.png"} == {
            *os.listdir(tmp_path / "through" / directory)
        } - {"curves.png"}


def modified(directory):
    """When a file in a directory last came or went."""
    return directory.stat().st_mtime_ns if directory.exists() else 0


def position(directory):
    """How far the newest checkpoint of a run is; all of its checkpoints must be whole."""
    checkpoints = Checkpoints(directory / "checkpoints")
    states = [read(path) for path in checkpoints.paths()] if checkpoints.directory.exists() else []
    return max(((state["position"]["epoch"], state["position"]["step"]) for state in states), default=(0, 0))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGUSR1, 75), (signal.SIGINT, 130)])
@pytest.mark.parametrize("variables", [{}, {"PYTORCH_LAUNCH_ID": "7.0"}])
def test_a_signal_while_ranks_wait_for_each_other_ends_the_run_at_once(payload, tmp_path, number, status, variables):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    rank = subprocess.Popen(
        [sys.executable, payload / "mnist_ddp.py", "--modelpath", tmp_path / "run", "--timeout", "60"],
        env={**os.environ, **world, **variables}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while True:  # until rank 0 listens
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert time.monotonic() < deadline and rank.poll() is None
            time.sleep(0.1)
        time.sleep(0.5)
        rank.send_signal(number)
        _, errors = rank.communicate(timeout=5)
    finally:
        rank.kill()
    assert rank.returncode == status
    assert errors.endswith(f"mnist_ddp.py: {number.name}: stopped, nothing was saved\n")
