"""A training whose loss or weights are not finite numbers ends, on all ranks at once, and keeps its checkpoints."""

import json
import re

import pytest
import torch
from launching import run_code
from small_runs import small_run, take_steps
from training import NOT_FINITE
from training.finite import are_finite

pytestmark = pytest.mark.slow

SENTENCE = rf"rank 0: the loss of [^\n]+ {NOT_FINITE}: (nan|inf)\. Use a smaller --lr[^\n]*\n"
#: After some losses, all of one rank are infinite.
DIVERGING = """
import torch.nn.functional as F
losses = []
def poisoned(*arguments, function=F.cross_entropy, **options):
    losses.append(function(*arguments, **options))
    return losses[-1] * (float("inf") if len(losses) > {good} and os.environ.get("RANK") == "{rank}" else 1)
F.cross_entropy = poisoned
sys.argv = {line!r}
import {module} as program
program.run_training(program.train, program.parse_arguments(sys.argv[1:]))
"""


def run_diverging(module, good, *line):
    line = [f"{module}.py", *map(str, line)]
    return run_code(2, DIVERGING.format(module=module, good=good, rank=1, line=line), status=1)


def all_finite(paths):
    return all(are_finite(torch.load(path, weights_only=True)["model"].values()) for path in paths)


def test_a_loss_that_is_not_finite_ends_all_ranks_together_and_is_reported_once(small_mnist, tmp_path):
    line = ("--data", small_mnist, "--batch-size", 32, "--epochs", 9, "--keep", 1, "--modelpath", tmp_path / "run")
    ranks = run_diverging("mnist_ddp", 12, *line)  # 5 steps in each epoch
    assert re.fullmatch(SENTENCE, ranks[0].stderr) and ranks[1].stderr == ""
    paths = sorted((tmp_path / "run" / "checkpoints").glob("*.pt"))
    assert [path.name for path in paths][1:] == ["epoch-0002-step-000000.pt"] and all_finite(paths)
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["epoch"], last["loss"]) == (3, None), "a record of the epoch that diverged"


def test_the_language_model_ends_too_and_writes_no_checkpoint(text, tmp_path):
    line = ("--size", "100K", "--context", 16, "--data", text, "--steps", 40, "--interval", 40, "--every", 2)
    ranks = run_diverging("lm_fsdp", 5, *line, "--keep", 1, "--modelpath", tmp_path / "run")
    assert re.fullmatch(SENTENCE, ranks[0].stderr) and ranks[1].stderr == ""
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000004"]


def test_no_checkpoint_replaces_a_better_one_when_a_weight_is_not_finite(checkpoints, alone):
    run = small_run(alone)
    for step in (1, 2, 3):
        run.position.step = step
        run.save(checkpoints)
    before = sorted(checkpoints.directory.iterdir())
    with torch.no_grad():
        next(run.network.parameters())[0, 0] = float("inf")
    run.position.step = 4
    with pytest.raises(Exception, match=f"a weight {NOT_FINITE}, and no checkpoint is written"):
        run.save(checkpoints)
    assert sorted(checkpoints.directory.iterdir()) == before


def test_a_step_that_a_gradient_scaler_skips_does_not_count(checkpoints, alone):
    run = small_run(alone)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    take_steps(run, 1)
    for gradient in (float("inf"), float("nan"), 1.0):
        run.optimizer.zero_grad()
        loss = run.network(torch.randn(16, 4)).square().sum()
        scaler.scale(loss).backward()
        next(run.network.parameters()).grad[0, 0] *= gradient
        scaler.step(run.optimizer)
        scaler.update()
        run.position.step += 1
        assert run.save(checkpoints)
