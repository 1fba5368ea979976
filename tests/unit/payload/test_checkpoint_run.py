"""training/checkpoint.py: a run continues from its checkpoint as if it had not stopped."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from small_runs import first, small_run, take_steps
from torch import nn
from training import TrainingError
from training.checkpoint import MismatchError, Position, Run, check_random_state


def test_a_run_continues_with_weights_optimizer_schedule_position_and_random_state(checkpoints, alone):
    through = small_run(alone)
    take_steps(through, 3)
    assert through.save(checkpoints) == checkpoints.directory / "epoch-0000-step-000003.pt"
    take_steps(through, 4)

    resumed = small_run(alone)
    assert resumed.resume(None) is None and resumed.position == Position()
    assert resumed.resume(checkpoints) == str(checkpoints.directory / "epoch-0000-step-000003.pt")
    take_steps(resumed, 4)
    assert resumed.position == through.position == Position(step=7)
    assert resumed.schedule.get_last_lr() == through.schedule.get_last_lr() == [0.1 / 8]
    for name, weight in through.network.state_dict().items():
        assert torch.equal(resumed.network.state_dict()[name], weight)


@pytest.mark.parametrize("fused", [False, True])
def test_a_run_continues_with_the_optimizer_that_its_own_machine_can_do(checkpoints, alone, fused):
    def run(fused):
        run = small_run(alone)
        run.optimizer = torch.optim.Adam(run.network.parameters(), lr=0.1, fused=fused)
        run.schedule = torch.optim.lr_scheduler.StepLR(run.optimizer, step_size=2, gamma=0.5)
        return run

    before, after = run(not fused), run(fused)
    take_steps(before, 3)
    before.save(checkpoints)
    after.resume(checkpoints)
    assert after.optimizer.param_groups[0]["fused"] is fused
    take_steps(after, 1)


def test_the_best_is_that_of_the_best_epoch(checkpoints, alone):
    run = small_run(alone)
    for accuracy, best in ((0, 1), (70, 2), (60, 2), (70, 2), (71, 5)):
        run.position.end_epoch(accuracy)
        run.save(checkpoints)
        assert torch.load(checkpoints.directory / "best.pt")["position"]["epoch"] == best
        take_steps(run, 1)
        run.save(checkpoints)  # in the middle of an epoch nothing was measured
        assert torch.load(checkpoints.directory / "best.pt")["position"]["epoch"] == best
    again = small_run(alone)
    assert again.resume(checkpoints) and again.position == run.position  # accuracies may be whole numbers


def test_a_random_state_that_is_none_is_one_sentence(checkpoints, alone):
    run = small_run(alone)
    path = run.save(checkpoints)
    state = torch.load(path, weights_only=True)
    state["random"][0]["cpu"].fill_(255)
    torch.save(state, path)
    with pytest.raises(
        TrainingError, match=f"^{path}: does not fit this run .invalid random state: Invalid mt19937 state"
    ):
        small_run(alone).resume(checkpoints)


def test_a_random_state_of_a_gpu_is_checked_where_the_run_uses_one(monkeypatch):
    gpu = torch.Generator()  # in place of a GPU's
    functions = {"get_rng_state": lambda _: gpu.get_state(), "set_rng_state": lambda state, _: gpu.set_state(state)}
    monkeypatch.setattr("training.checkpoint.module_of", lambda _: SimpleNamespace(**functions))
    good, before = torch.get_rng_state(), gpu.get_state()
    other = torch.manual_seed(7).get_state()
    for value in (other, "x", torch.zeros(3), torch.full_like(good, 255)):
        check_random_state({"cpu": other, "cuda": value}, torch.device("cpu"))
        with nullcontext() if value is other else pytest.raises(MismatchError, match="random"):
            check_random_state({"cpu": other, "cuda": value}, torch.device("cuda"))
    check_random_state({"cpu": good}, torch.device("cuda"))  # of a run on CPUs
    assert torch.equal(torch.get_rng_state(), other) and torch.equal(gpu.get_state(), before)


def test_a_file_that_is_larger_than_a_checkpoint_of_the_run_is_not_read(checkpoints, alone):
    path = checkpoints.directory / "epoch-0001-step-000000.pt"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(TrainingError, match=f"^{path}: 1099511627776 bytes, expected at most "):
        small_run(alone).resume(checkpoints)


def test_the_step_of_adam_may_have_another_shape(checkpoints, alone):
    before, after = small_run(alone), small_run(alone)
    take_steps(before, 1)
    path = before.save(checkpoints)
    state = torch.load(path, weights_only=True)
    first(state)["step"] = first(state)["step"].reshape(1)
    torch.save(state, path)
    after.resume(checkpoints)
    step = after.optimizer.state[after.network[0].weight]["step"]
    assert step.shape == () and step == 1
    take_steps(after, 1)


def sparse_run(world, kind):
    """A run of an optimizer that takes no step with zeros as gradients, and a function that takes one."""
    torch.manual_seed(1)
    network = nn.Embedding(6, 2, sparse=True) if kind == "SparseAdam" else nn.Linear(2, 2)
    optimizer = getattr(torch.optim, kind)(network.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    data = torch.arange(4) if kind == "SparseAdam" else torch.ones(3, 2)

    def closure():
        optimizer.zero_grad()
        loss = network(data).square().sum()
        loss.backward()
        return loss

    return Run(network, optimizer, schedule, {"epochs": 3}, world), lambda: optimizer.step(closure)


@pytest.mark.parametrize("kind", ["LBFGS", "SparseAdam"])
def test_optimizers_that_take_no_step_without_data_are_resumed(checkpoints, alone, kind):
    before, step = sparse_run(alone, kind)
    step()
    path = before.save(checkpoints)
    after, step_again = sparse_run(alone, kind)
    assert after.resume(checkpoints) == str(path)
    step()
    step_again()
    for name, weight in before.network.state_dict().items():
        assert torch.equal(after.network.state_dict()[name], weight)


def test_a_state_gets_memory_of_its_own_with_the_strides_of_the_run(checkpoints, alone):
    before, after = small_run(alone), small_run(alone)
    take_steps(before, 1)
    path = before.save(checkpoints)
    state = torch.load(path, weights_only=True)
    first(state)["exp_avg"] = torch.ones(1).expand(8, 4)
    first(state)["exp_avg_sq"] = first(state)["exp_avg"]
    torch.save(state, path)
    after.resume(checkpoints)
    loaded = after.optimizer.state[after.network[0].weight]
    assert loaded["exp_avg"].stride() == loaded["exp_avg_sq"].stride() == (4, 1)
    assert loaded["exp_avg"].data_ptr() != loaded["exp_avg_sq"].data_ptr()
    assert torch.equal(loaded["exp_avg"], torch.ones(8, 4))
    take_steps(after, 1)
