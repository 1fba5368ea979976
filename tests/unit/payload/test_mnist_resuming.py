"""mnist_ddp.py: a training that is stopped, killed and started again is one training."""

import json
import os
import re
import shutil
import signal
import time

import pytest
import torch
from launching import PAYLOAD, launch, run_ranks, run_struck
from small_runs import equal, weights
from training.checkpoint import Checkpoints, damage_of, read
from training.distributed import World

pytestmark = [pytest.mark.early, pytest.mark.slow]

#: 65 steps an epoch, so that ranks which agree at every 16th stop in the middle of one.
SHORT = ("--epochs", 6, "--batch-size", 2, "--lr", 0.002)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory, write_mnist):
    """A training of one rank without an interruption, and the same begun by 4 ranks, stopped, and so on by 2 and 1."""
    root = tmp_path_factory.mktemp("interrupted")
    arguments = ("--data", write_mnist(root / "mnist", 130, 31), *SHORT, "--modelpath")
    through = run_ranks(1, *arguments, root / "through")
    parts = []
    for size, strike in ((4, (3, "epoch 2/6", 10)), (2, (0, "epoch 4/6", 20))):
        parts.append(run_struck(size, *arguments, root / "parts", strike=strike))
    parts.append(run_ranks(1, *arguments, root / "parts"))
    return root, arguments, through, parts


def test_ranks_that_are_asked_to_stop_end_with_75_and_the_next_start_continues_there(interrupted):
    root, _, _, parts = interrupted
    assert [rank.stderr for ranks in parts for rank in ranks] == [""] * 7
    # The ranks ask each other at each 16th step of a start, counting the end of an epoch as one.
    for before, after, size, epochs, steps in zip(parts, parts[1:], (2, 1), (1, 3), (80 - 66, 144 - 52 - 66)):
        file = f"{root}/parts/checkpoints/epoch-000{epochs}-step-0000{steps}.pt"
        place = f"after {epochs} epochs and {steps} steps"
        last = f"SIGUSR1: stopped {place}, saved in {file}. Run the same command again to resume"
        assert before[0].stdout.splitlines()[-1] == last
        assert f"world size {size}," in after[0].stdout and f"resuming {place}, from {file}\n" in after[0].stdout
    lines = [line for ranks in parts for line in ranks[0].stdout.splitlines() if "images/s" in line]
    assert [line.split()[1] for line in lines] == [f"{epoch}/6" for epoch in range(1, 7)]


def test_four_then_two_then_one_rank_end_where_one_rank_ends_in_one_go_and_record_each_epoch_once(interrupted):
    root, _, through, parts = interrupted
    for name, weight in weights(root / "through").items():
        # 1e-7 was seen; 1e-1 where the optimizer began anew.
        assert (weights(root / "parts")[name] - weight).norm() < 1e-4 * weight.norm()
    losses = [
        [float(loss) for loss in re.findall(r"loss (\S+) ", "".join(rank.stdout for rank in ranks))]
        for ranks in (through, [part[0] for part in parts])
    ]
    assert losses[1] == pytest.approx(losses[0], abs=0.001)
    lines = [json.loads(line) for line in (root / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["epoch"], line["world_size"]) for line in lines] == list(zip(range(1, 7), (4, 2, 2, 1, 1, 1)))
    # the time of an epoch that was interrupted is that of all its steps
    assert [line["images_per_second"] * line["seconds"] for line in lines] == pytest.approx([130] * 6, rel=0.05)
    total = re.search(r"^training time: (\S+) s$", parts[-1][0].stdout, re.MULTILINE)[1]
    assert sum(line["seconds"] for line in lines) == pytest.approx(float(total), abs=0.06)
    best = torch.load(root / "parts" / "checkpoints" / "best.pt", weights_only=True)["position"]
    assert best["accuracy"] == max(line["accuracy"] for line in lines)


def test_a_run_that_is_finished_reports_it_and_the_same_accuracy(interrupted):
    root, arguments, (before,), _ = interrupted
    model = weights(root / "through")
    (rank,) = run_ranks(1, *arguments, root / "through")
    assert "\nresuming after 6 epochs and 0 steps, " in rank.stdout and "epoch 1/6" not in rank.stdout
    assert re.search("test accuracy: .*", rank.stdout)[0] == re.search("test accuracy: .*", before.stdout)[0]
    assert equal(weights(root / "through"), model)


def is_share(accuracy, count):
    """Whether an accuracy, in % with two decimals, can be that of `count` images."""
    correct = float(accuracy) * count / 100
    return correct == pytest.approx(round(correct), abs=0.01)


@pytest.mark.parametrize("size", [1, 2])
def test_images_that_are_held_out_tell_which_epoch_is_best_and_the_test_comes_at_the_end(small_mnist, tmp_path, size):
    line = ("--data", small_mnist, "--epochs", 3, "--batch-size", 16, "--modelpath", tmp_path)
    output = run_ranks(size, *line, "--validation", 0.2)[0].stdout
    epochs = re.findall(r"^epoch ./3  loss \S+  validation accuracy (\S+) %", output, re.MULTILINE)
    assert len(epochs) == 3 and all(is_share(accuracy, 26) for accuracy in epochs)
    assert is_share(re.search(r"^test accuracy: (\S+) %", output, re.MULTILINE)[1], 31)
    metrics = [json.loads(line)["accuracy"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [f"{accuracy:.2f}" for accuracy in metrics] == epochs
    (other,) = run_ranks(1, *line, status=1)
    assert "validation 0.2 (now None)" in other.stderr


def test_a_resume_with_other_options_or_data_is_refused_in_one_sentence_by_one_rank(interrupted, write_mnist, tmp_path):
    root, arguments, _, _ = interrupted
    ranks = run_ranks(2, *arguments, root / "through", "--lr", 0.5, "--seed", 3, status=1)
    assert ranks[1].stderr == ""
    assert re.fullmatch(
        rf"rank 0: {root}/through/checkpoints/epoch-0006-step-000000.pt: written with learning rate 0.002 \(now 0.5\), "
        r"seed 0 \(now 3\)\. .*--restart\n",
        ranks[0].stderr,
    )
    same = shutil.copytree(root / "mnist", tmp_path / "same")
    other = write_mnist(tmp_path / "other", 130, 31)
    path = other / "train-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    for data, status in ((same, 0), (other, 1)):
        (rank,) = run_ranks(1, "--data", data, *arguments[2:], root / "through", status=status)
    assert re.fullmatch(
        r"rank 0: \S+.pt: written with data= .*Use the same options and data, .*--restart\n", rank.stderr
    )


def test_ctrl_c_saves_and_ends_with_status_130_and_the_next_start_continues(interrupted, tmp_path):
    _, arguments, _, _ = interrupted
    strike = {"strike": (0, "epoch 2/6", 10), "number": signal.SIGINT}
    (rank,) = run_struck(1, *arguments, tmp_path, **strike, status=130)
    assert rank.stderr == ""
    assert re.match(r"SIGINT: stopped after .* saved in .*\. Run the same command again", rank.stdout.splitlines()[-1])
    (rank,) = run_ranks(1, *arguments, tmp_path)
    assert "resuming after" in rank.stdout


def test_restart_begins_anew(small_mnist, tmp_path):
    line = ("--data", small_mnist, "--batch-size", 32, "--modelpath", tmp_path / "run")
    run_ranks(1, *line, "--epochs", 3)
    (rank,) = run_ranks(1, *line, "--epochs", 2, "--restart")
    assert "resuming" not in rank.stdout and "epoch 1/2" in rank.stdout
    names = sorted(os.listdir(tmp_path / "run" / "checkpoints"))
    assert names == ["best.pt", "epoch-0001-step-000000.pt", "epoch-0002-step-000000.pt"]


def test_a_run_that_can_save_nothing_ends_as_signals_end_programs(small_mnist):
    strike = {"strike": (0, "epoch 2/3", 1), "number": signal.SIGTERM}
    run_struck(1, "--data", small_mnist, "--epochs", 3, **strike, status=-signal.SIGTERM)


@pytest.mark.parametrize("count", [8, pytest.param(50, marks=pytest.mark.thorough)])
def test_kills_at_any_moment_lose_nothing(small_mnist, tmp_path, draw, count):
    """During training, saving and stopping; each next start continues, and the end is the uninterrupted run's."""
    line = ("--data", small_mnist, "--epochs", 12, "--batch-size", 8, "--keep", 2, "--modelpath")
    run_ranks(1, *line, tmp_path / "through")
    kills = ends = 0
    reached = (0, 0)
    while kills < count:
        ranks = launch(1, PAYLOAD / "mnist_ddp.py", *line, tmp_path / "killed")
        ranks.wait_until_said("world size 1")
        time.sleep(draw.uniform(0, 0.2))
        during = draw.choice(["training", "stopping", "saving"])
        if during == "stopping":
            ranks.signal(0, signal.SIGTERM)
        elif during == "saving":
            changed = modified(tmp_path / "killed" / "checkpoints")
            while modified(tmp_path / "killed" / "checkpoints") == changed and ranks.is_alive():
                pass  # a file is written in less time than a pause would take
        if draw.random() < 0.5:
            time.sleep(draw.uniform(0, 0.01))
        ranks.kill()
        (rank,) = ranks.wait()
        assert rank.status in (0, 75, -signal.SIGKILL), rank.stderr
        kills += rank.status == -signal.SIGKILL
        found = position(tmp_path / "killed")
        assert found >= reached, "no start lost what was saved"
        reached = found
        if rank.status == 0:
            ends += 1
            assert equal(weights(tmp_path / "killed"), weights(tmp_path / "through"))
            shutil.rmtree(tmp_path / "killed")
            reached = (0, 0)
    run_ranks(1, *line, tmp_path / "killed")
    assert equal(weights(tmp_path / "killed"), weights(tmp_path / "through"))
    assert ends < count
    for directory in ("", "checkpoints"):
        assert {*os.listdir(tmp_path / "killed" / directory)} == {*os.listdir(tmp_path / "through" / directory)}


def modified(directory):
    """When a file in a directory last came or went."""
    return directory.stat().st_mtime_ns if directory.exists() else 0


def position(directory):
    """How far the newest checkpoint of a run is; all of its checkpoints must be intact."""
    checkpoints = Checkpoints(directory / "checkpoints", World(0, 1, torch.device("cpu")))
    paths = checkpoints.paths() if checkpoints.directory.exists() else []
    for path in paths:
        assert damage_of(path) is None
    states = [read(path) for path in paths]
    return max(((state["position"]["epoch"], state["position"]["step"]) for state in states), default=(0, 0))
