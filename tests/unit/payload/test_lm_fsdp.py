"""lm_fsdp.py: one training, whatever the number of ranks and however the model is divided among them."""

import re
import shutil

import pytest
import torch
from launching import run_model
from training.metrics import read_epochs

pytestmark = pytest.mark.slow

OPTIONS = ("--size", "100K", "--steps", 8, "--interval", 2, "--context", 32, "--batch-size", 6, "--clip", 0.5)
WORLDS = {
    "alone": (1,),
    "two ranks": (2, "--every", 3),
    "four ranks, of which two have an empty place in each batch": (4,),
    "copies with micro-batches": (2, "--replicas", 2, "--micro-batch", 2),
    "two ranks divide each block, and two the rest": (4, "--tensor", 2, "--every", 4),
    "hybrid with micro-batches, computed again": (4, "--replicas", 2, "--micro-batch", 1, "--recompute"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The directories of the worlds that write checkpoints, by their names."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def worlds(text, runs):
    found = {}
    for name, (size, *options) in WORLDS.items():
        saved = ("--modelpath", runs / name) if "--every" in options else ()
        found[name] = run_model(size, "--data", text, *OPTIONS, *options, *saved)
    return found


def losses(ranks):
    """The training and the validation loss of each line."""
    found = re.findall(r"^step \d+/\d+  loss (\S+)  validation loss (\S+)  tokens/s", ranks[0].stdout, re.MULTILINE)
    return [float(loss) for pair in found for loss in pair]


@pytest.mark.parametrize("name", WORLDS)
def test_the_loss_curve_does_not_depend_on_how_the_ranks_divide_the_work(worlds, name):
    assert len(losses(worlds["alone"])) == 8
    assert losses(worlds[name]) == pytest.approx(losses(worlds["alone"]), abs=0.0003)
    assert [rank.stdout for rank in worlds[name][1:]] == [""] * (WORLDS[name][0] - 1)


def test_a_rank_keeps_its_share_of_the_parameters(worlds):
    four = "four ranks, of which two have an empty place in each batch"
    hybrid = "hybrid with micro-batches, computed again"
    parts = {"alone": 1, "copies with micro-batches": 1, "two ranks": 2, four: 4, hybrid: 2}
    for name, count in parts.items():
        found = re.search(r"100K: (\d+) parameters, of which rank 0 keeps (\d+)", worlds[name][0].stdout)
        assert int(found[2]) == pytest.approx(int(found[1]) / count, abs=100), name


def independent_loop(data, steps, size, context, clip):
    """The losses of steps without ranks, shards or a library of ours but the network: 6 windows, AdamW."""
    from training.language.model import GPT
    from training.language.options import SHAPES
    from training.schedule import epoch_order, learning_rate_factor

    text = torch.tensor(list(data.read_bytes()))
    text = text[: len(text) - len(text) // 20]
    count = (len(text) - 1) // context
    torch.manual_seed(0)
    network = GPT(SHAPES[size], context).double()
    generator = torch.Generator().manual_seed(0)
    for name, weight in network.named_parameters():  # of GPT-2's first step
        if weight.dim() == 1:
            torch.nn.init.constant_(weight, float(name.endswith("weight")))
            continue
        is_added = name.endswith(("attention.output.weight", "network.2.weight"))
        deviation = 0.02 / (2 * SHAPES[size].layers) ** 0.5 if is_added else 0.02
        weight.data = torch.empty(weight.shape).normal_(0, deviation, generator=generator).double()
    groups = [
        {"params": [weight for weight in network.parameters() if weight.dim() > 1], "weight_decay": 0.1},
        {"params": [weight for weight in network.parameters() if weight.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.002, betas=(0.9, 0.95))
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.002 * learning_rate_factor(step, steps, steps // 10)
        windows = epoch_order(count, 0, 0)[step * 6 : step * 6 + 6]
        inputs = torch.stack([text[window * context : (window + 1) * context] for window in windows])
        labels = torch.stack([text[window * context + 1 : (window + 1) * context + 1] for window in windows])
        loss = torch.nn.functional.cross_entropy(network(inputs).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_losses_are_those_of_an_independent_loop(worlds, text):
    expected = independent_loop(text, steps=8, size="100K", context=32, clip=0.5)
    means = [sum(expected[step : step + 2]) / 2 for step in range(0, 8, 2)]
    assert losses(worlds["alone"])[::2] == pytest.approx(means, abs=0.0003)


def test_the_loss_falls_below_that_of_a_model_that_only_counts_bytes(text, tmp_path):
    counts = torch.bincount(torch.tensor(list(text.read_bytes())), minlength=256)
    entropy = torch.distributions.Categorical(counts / counts.sum()).entropy()
    line = ("--data", text, *OPTIONS, "--steps", 60, "--interval", 20, "--lr", 0.01, "--modelpath", tmp_path)
    (rank,) = run_model(1, *line, "--peak-tflops", 0.1)
    reached = re.search(r"^validation loss: (\S+)$", rank.stdout, re.MULTILINE)[1]
    assert float(reached) < entropy - 0.3
    lines = read_epochs(tmp_path / "metrics.jsonl", "step")
    assert [line["step"] for line in lines] == [20, 40, 60]
    assert lines[-1]["validation_loss"] == pytest.approx(float(reached), abs=1e-4)
    tokens_per_second = 1e11 / (6 * (117_376 - 32 * 64) + 12 * 2 * 64 * 32)  # at the peak of 0.1 TFLOP/s
    utilisation = 100 * lines[-1]["tokens_per_second"] / tokens_per_second
    assert lines[-1]["utilisation"] == pytest.approx(utilisation)
    assert f"utilisation {utilisation:.1f} %\n" in rank.stdout
    weights = torch.load(tmp_path / "lm_fsdp.pt", weights_only=True)
    assert weights["embedding.weight"].shape == (256, 64) and all(type(one) is torch.Tensor for one in weights.values())


def test_bfloat16_gives_nearly_the_same_losses(worlds, text):
    ranks = run_model(1, "--data", text, *OPTIONS, "--bf16")
    assert losses(ranks) == pytest.approx(losses(worlds["alone"]), abs=0.05)
    assert losses(ranks) != losses(worlds["alone"])


DIVIDED = "two ranks divide each block, and two the rest"


@pytest.mark.parametrize(
    ("name", "every", "after", "size", "tensor"),
    [
        ("two ranks", 3, 6, 1, 1),
        (DIVIDED, 4, 4, 1, 1),
        (DIVIDED, 4, 4, 2, 2),
    ],
)
def test_a_stopped_training_resumes_in_another_world_or_division_and_reaches_the_same_losses(
    worlds, text, runs, tmp_path, name, every, after, size, tensor
):
    directory = shutil.copytree(runs / name, tmp_path / "run")
    shutil.rmtree(directory / "checkpoints" / "step-00000008")
    line = ("--data", text, *OPTIONS, "--every", every, "--modelpath", directory, "--tensor", tensor)
    ranks = run_model(size, *line)
    assert f"resuming after {after} steps" in ranks[0].stdout
    assert losses(ranks) == pytest.approx(losses(worlds["alone"])[after:], abs=0.0003)


@pytest.mark.parametrize(
    ("size", "option", "words"),
    [
        (2, "--replicas", "--replicas 3, --tensor 1: not divisors of 2 ranks. Use others\n"),
        (2, "--tensor", "--replicas 1, --tensor 3: not divisors of 2 ranks. Use others\n"),
        (3, "--tensor", "--tensor 3: the 4 heads of this model are not a multiple. Use a divisor, or another --size\n"),
    ],
)
def test_a_number_of_ranks_that_cannot_divide_a_model_is_one_sentence(text, size, option, words):
    ranks = run_model(size, "--data", text, *OPTIONS, option, 3, status=1)
    assert "".join(rank.stderr for rank in ranks) == f"rank 0: {words}"
