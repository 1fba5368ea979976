"""training/checkpoint.py: a run continues from its own checkpoint as if it had not stopped, and from no other."""

import json
import re
from collections import Counter, namedtuple
from contextlib import nullcontext
from enum import Enum, IntEnum
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from small_runs import change_file, equal, first, small_run, take_steps
from training import TrainingError
from training.checkpoint import Position, UnusableError, check_random_state, is_equal, state_after_a_step


def test_a_run_continues_with_weights_optimizer_schedule_position_and_random_state(checkpoints, alone):
    through = small_run(alone)
    take_steps(through, 3)
    assert through.save(checkpoints) == str(checkpoints.directory / "epoch-0000-step-000003.pt")
    take_steps(through, 4)

    resumed = small_run(alone)
    assert resumed.resume(None) is None and resumed.position == Position()
    assert resumed.resume(checkpoints) == str(checkpoints.directory / "epoch-0000-step-000003.pt")
    take_steps(resumed, 4)
    assert resumed.position == through.position == Position(step=7)
    assert resumed.schedule.get_last_lr() == through.schedule.get_last_lr() == [0.1 / 8]
    assert equal(resumed.network.state_dict(), through.network.state_dict())


@pytest.mark.parametrize("fused", [False, True])
def test_a_run_continues_with_the_optimizer_that_its_own_machine_can_do(checkpoints, alone, fused):
    before, after = (small_run(alone, partial(torch.optim.Adam, lr=0.1, fused=one)) for one in (not fused, fused))
    take_steps(before, 3)
    before.save(checkpoints)
    after.resume(checkpoints)
    assert after.optimizer.param_groups[0]["fused"] is fused
    take_steps(after, 1)


def test_an_optimizer_that_takes_no_step_without_data_is_resumed(checkpoints, alone):
    assert state_after_a_step(torch.optim.SparseAdam([torch.ones(2, requires_grad=True)])) == {}
    before, after = (small_run(alone, torch.optim.LBFGS) for _ in range(2))
    take_steps(before, 1)
    before.save(checkpoints)
    state = torch.get_rng_state()
    take_steps(before, 1)
    assert after.resume(checkpoints) and torch.equal(torch.get_rng_state(), state)
    take_steps(after, 1)
    assert equal(after.network.state_dict(), before.network.state_dict())


def test_a_state_of_another_version_gets_memory_of_its_own_with_the_shapes_and_strides_of_the_run(checkpoints, alone):
    def change(state):
        moments = first(state)
        moments["step"] = moments["step"].reshape(1)
        moments["exp_avg"] = moments["exp_avg_sq"] = torch.ones(1).expand(8, 4)
        group(state)["params"].reverse()  # the numbers are the run's own

    before, after = small_run(alone), small_run(alone)
    take_steps(before, 1)
    change_file(before.save(checkpoints), change)
    after.resume(checkpoints)
    loaded = after.optimizer.state[after.network[0].weight]
    assert loaded["step"].shape == () and loaded["step"] == 1
    assert loaded["exp_avg"].stride() == loaded["exp_avg_sq"].stride() == (4, 1)
    assert loaded["exp_avg"].data_ptr() != loaded["exp_avg_sq"].data_ptr()
    assert torch.equal(loaded["exp_avg"], torch.ones(8, 4))
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


def test_a_random_state_of_a_gpu_is_checked_where_the_run_uses_one(monkeypatch):
    gpu = torch.Generator()  # in place of a GPU's
    functions = {"get_rng_state": lambda _: gpu.get_state(), "set_rng_state": lambda state, _: gpu.set_state(state)}
    monkeypatch.setattr("training.checkpoint.module_of", lambda _: SimpleNamespace(**functions))
    good, before = torch.get_rng_state(), gpu.get_state()
    other = torch.manual_seed(7).get_state()
    for value in (other, "x", torch.zeros(3), torch.full_like(good, 255)):
        check_random_state({"cpu": other, "cuda": value}, torch.device("cpu"))
        with nullcontext() if value is other else pytest.raises(UnusableError, match="random"):
            check_random_state({"cpu": other, "cuda": value}, torch.device("cuda"))
    check_random_state({"cpu": good}, torch.device("cuda"))  # of a run on CPUs
    assert torch.equal(torch.get_rng_state(), other) and torch.equal(gpu.get_state(), before)


def test_a_file_that_is_larger_than_a_checkpoint_of_the_run_is_not_read(checkpoints, alone):
    path = checkpoints.directory / "epoch-0001-step-000000.pt"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(TrainingError, match=f"^{path}: 1099511627776 bytes, expected at most "):
        small_run(alone).resume(checkpoints)


def test_options_that_make_another_run_are_refused_by_their_names_and_values(checkpoints, alone):
    small_run(alone, **{"learning rate": 0.1, "seed": 1}).save(checkpoints)
    with pytest.raises(TrainingError) as error:
        small_run(alone, epochs=5, **{"learning rate": 0.2, "seed": 1}).resume(checkpoints)
    assert str(error.value) == (
        f"{checkpoints.directory}/epoch-0000-step-000000.pt: written with epochs 3 (now 5), learning rate 0.1 (now 0.2)"
        ". Use the same options, choose another directory with --modelpath, or start from scratch with --restart"
    )


@pytest.mark.parametrize(
    ("before", "now"), [([0.9, 0.99], [0.9, 0.999]), ("x" * 50, "x" * 49 + "y"), ({"a": 1}, {"a": 2}), (None, 0)]
)
def test_settings_may_be_lists_dicts_and_long_strings(checkpoints, alone, before, now):
    small_run(alone, more=before).save(checkpoints)
    small_run(alone, more=before).resume(checkpoints)
    with pytest.raises(TrainingError, match="written with more "):
        small_run(alone, more=now).resume(checkpoints)


class Kind(str, Enum):
    SMALL = "small"


@pytest.mark.parametrize(
    "own", [Kind.SMALL, torch.__version__, namedtuple("Pair", "a b")(1, 2), IntEnum("N", "one").one]
)
def test_settings_of_types_that_json_does_not_keep_are_equal(own):
    assert is_equal(json.loads(json.dumps(own)), own)


def test_a_checkpoint_of_another_program_is_refused(checkpoints, alone):
    checkpoints.write(checkpoints.directory / "epoch-0001-step-000000.pt", {"model": {}, "loss": 3.0})
    with pytest.raises(TrainingError, match="program: it has no optimizer, position, random, schedule, settings"):
        small_run(alone).resume(checkpoints)


def group(state):
    return state["optimizer"]["param_groups"][0]


def laughs():
    """A list of 2^40 words that share their memory."""
    words = ["ha"]
    for _ in range(40):
        words = [words, words]
    return words


#: Changes of a checkpoint after 3 steps, by the words that report them.
CHANGES = {
    "of its optimizer": (
        lambda s: first(s).update(exp_avg=torch.zeros(3)),
        lambda s: first(s).update(exp_avg=torch.zeros(8, 4).double()),
        lambda s: first(s).update(exp_avg=torch.zeros(1).expand(2**40)),
        lambda s: first(s).update(exp_avg="x"),
        lambda s: first(s).update(more=1),
        lambda s: first(s).pop("exp_avg"),
        lambda s: group(s).update(amsgrad=True),
        lambda s: group(s).update(lr="x"),
        lambda s: group(s).update(params=[0]),
        lambda s: group(s).update(params=[torch.zeros(2)] * len(group(s)["params"])),
    ),
    "its optimizer has other parameters": (
        lambda s: s["optimizer"]["state"].update({99: {}}),
        lambda s: s["optimizer"].update(state=[1]),
        lambda s: s.update(optimizer=1),
    ),
    "its optimizer has other groups of parameters": (
        lambda s: s["optimizer"]["param_groups"].append(group(s)),
        lambda s: s["optimizer"].update(param_groups=[]),
        lambda s: s["optimizer"].update(param_groups=torch.zeros(1).expand(2**40)),
    ),
    "its position is not one of this run": (
        lambda s: s["position"].update(step=10**9),
        lambda s: s["position"].update(epoch=10**9),
        lambda s: s["position"].update(epoch=-1),
        lambda s: s["position"].update(epoch=0.0),
        lambda s: s["position"].update(samples=161),
        *(lambda s, value=value: s["position"].update(seconds=float(value)) for value in ("nan", "inf")),
    ),
    "of its position": (
        lambda s: s["position"].update(epoch="1"),
        lambda s: s["position"].update(step=2**64),
        lambda s: s.update(position=None),
    ),
    "of its schedule": (lambda s: s.update(schedule=[1]),),
    "its random states are no list": (lambda s: s.update(random=None),),
    "invalid random state": (lambda s: s["random"].append(Counter([1])), lambda s: s["random"][0]["cpu"].fill_(255)),
    "of its random state": (
        lambda s: s["random"][0].update(cpu=torch.zeros(3, dtype=torch.uint8)),
        lambda s: s["random"].append("x"),
    ),
    "of its model": (
        lambda s: s["model"].update({"0.weight": torch.zeros(3)}),
        lambda s: s.update(model=[1]),
        lambda s: s.update(model={1: torch.zeros(1)}),
    ),
    "written with epochs None": (lambda s: s.update(settings=[1]),),
    "written with epochs a int": (lambda s: s["settings"].update(epochs=10**600),),
    "written with epochs a list": (lambda s: s["settings"].update(epochs=laughs()),),
    "written with epochs 'x{40}'... .now 3": (lambda s: s["settings"].update(epochs="x" * 10**6),),
}


@pytest.mark.parametrize(("words", "change"), [(words, change) for words in CHANGES for change in CHANGES[words]])
def test_a_checkpoint_with_a_part_that_is_not_of_this_run_is_refused_before_its_use(checkpoints, alone, words, change):
    """Fused Adam overwrites memory with a state of another shape."""
    before = bounded_run(alone)
    take_steps(before, 3)
    before.position.samples = 48
    path = before.save(checkpoints)
    change_file(path, change)
    after = bounded_run(alone)
    with pytest.raises(TrainingError) as fault:
        after.resume(checkpoints)
    text = str(fault.value)
    assert text.startswith(f"{path}: ") and "--restart" in text and len(text) < 600
    assert re.search(words, text), text
    assert after.position == Position()


def bounded_run(world):
    """A small run of 3 epochs with 10 steps each, of 160 samples."""
    run = small_run(world)
    run.limits = {"epoch": 3, "step": 9, "samples": 160}
    return run


def test_other_data_of_the_same_size_is_refused_and_a_checkpoint_without_a_fingerprint_is_taken(checkpoints, alone):
    run = small_run(alone)
    run.save(checkpoints)
    run.data = "one"
    assert run.resume(checkpoints)
    run.save(checkpoints)
    assert run.resume(checkpoints)
    run.data = "another"
    with pytest.raises(TrainingError, match="step-000000.pt: written with other data. Use the same data .--data"):
        run.resume(checkpoints)
