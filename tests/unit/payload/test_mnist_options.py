"""mnist_ddp.py: its command line, and what its options do to batches and learning rate."""

import signal
from pathlib import Path

import mnist_ddp
import pytest
import torch
from training.distributed import World


@pytest.fixture
def no_torch(tmp_path):
    """The environment of a Python in which torch cannot be imported."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    return {"PYTHONPATH": str(tmp_path)}


def test_help_answers_without_waiting_for_torch(run_alone, no_torch):
    rank = run_alone("--help", **no_torch)
    assert rank.status == 0 and rank.stderr == ""
    assert "--modelpath" in rank.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--warmup", "3"], "--warmup must be from 0 to below --epochs, found 3.0"),
        (["--validation", "1"], "argument --validation: must be a number above 0 and up to 0.99, found 1"),
        (["--data", ""], "argument --data: is empty. Set the variable that names it"),
        (["--modelpath", ""], "argument --modelpath: is empty. Set the variable that names it"),
        (["--modelpath", "x", "--wandb", ""], "argument --wandb: is empty. Set the variable that names it"),
        (["--model", "x"], "unrecognized arguments: --model x"),
        (["--download"], "--download needs --data or MNIST_ROOT"),
        (["--restart"], "--restart needs --modelpath"),
        (["--wandb", "mnist"], "--wandb needs --modelpath"),
    ],
)
def test_an_option_that_makes_no_sense_is_one_line_and_status_2(run_alone, no_torch, arguments, complaint):
    rank = run_alone(*arguments, **no_torch)
    assert rank.status == 2 and rank.stdout == ""
    assert rank.stderr == f"mnist_ddp.py: {complaint}. See --help\n"


def test_weights_have_the_channels_last_and_adam_is_one_kernel():
    run, _ = mnist_ddp.set_up(mnist_ddp.parse_arguments([]), 4000, World(0, 1, torch.device("cpu")))
    assert run.network[1].weight.is_contiguous(memory_format=torch.channels_last)
    assert run.optimizer.param_groups[0]["fused"] == (torch.__version__ >= "2.4")


def test_mnist_root_names_the_data_and_the_option_comes_before_it(monkeypatch):
    monkeypatch.setenv("MNIST_ROOT", "/data/mnist")
    assert mnist_ddp.parse_arguments([]).data == Path("/data/mnist")
    assert mnist_ddp.parse_arguments(["--data", "other"]).data == Path("other")
    monkeypatch.setenv("MNIST_ROOT", "")
    assert mnist_ddp.parse_arguments([]).data is None


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
    rank = run_alone(*arguments, PYTHONPATH=str(tmp_path))
    assert rank.status == status and rank.stdout == ""
    assert rank.stderr == (f"mnist_ddp.py: {number.name}: stopped, nothing was saved\n" if status > 0 else "")


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 235])
def test_the_learning_rate_reaches_its_peak_once_and_falls_to_0(steps):
    factors = [mnist_ddp.learning_rate_factor(step, steps) for step in range(steps + 1)]
    peak = factors.index(1)
    assert factors.count(1) == 1 and factors[-1] == 0
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
    assert factors == [mnist_ddp.learning_rate_factor(step, steps, steps // 4) for step in range(steps + 1)]
    assert [mnist_ddp.learning_rate_factor(step, 40, 4) for step in range(5)] == [0.2, 0.4, 0.6, 0.8, 1]


@pytest.mark.parametrize(
    ("arguments", "batch_size", "lr", "first_lr"),
    [
        (["--batch-size", "40", "--lr", "0.02"], 40, 0.02, 0.02 / (75 + 1)),
        (["--batch-per-rank", "10", "--lr", "0.02"], 40, 0.02, 0.02 / (75 + 1)),
        (["--batch-size", "40", "--lr", "0.02", "--warmup", "0.5"], 40, 0.02, 0.02 / (50 + 1)),
        (["--batch-size", "40", "--lr", "0.02", "--warmup", "0"], 40, 0.02, 0.02),
    ],
)
def test_the_batch_is_given_whole_or_by_rank_and_the_learning_rate_rises(arguments, batch_size, lr, first_lr):
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
