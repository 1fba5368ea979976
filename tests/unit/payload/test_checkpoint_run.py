"""training/checkpoint.py: what belongs to a run is saved and resumed; what cannot be is an error with its name."""

import argparse
import random
import re
from collections import namedtuple
from enum import Enum, IntEnum
from pathlib import Path

import pytest
import torch
from launching import run_code
from small_runs import ADAM, change_file, equal, plain, small_run, take_steps
from torch import nn
from training import TrainingError
from training.checkpoint import Position

pytestmark = pytest.mark.slow

np = pytest.importorskip("numpy")


def name_of(value):
    """The text of a value, without an address in memory: the same in each process of a run."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))


class Kind(str, Enum):
    SMALL = "small"


OPTIONS = argparse.Namespace(data=Path("/data"), lr=0.1, seed=None, gpu=False)

#: Settings as programs give them.
SETTINGS = [
    Path("/data"),
    vars(OPTIONS),
    np.float64(0.1),
    np.bool_(True),
    torch.tensor(0.1),
    torch.__version__,
    Kind.SMALL,
    IntEnum("Number", "ONE").ONE,
    namedtuple("Pair", "a b")(1, (2, 3)),
    float("nan"),
    {1: None},
]


@pytest.mark.parametrize("value", SETTINGS, ids=name_of)
def test_a_setting_is_saved_and_is_the_same_at_the_resume(checkpoints, alone, value):
    small_run(alone, more=value).save(checkpoints)
    assert small_run(alone, more=value).resume(checkpoints)
    with pytest.raises(TrainingError, match="written with more "):
        small_run(alone, more="another").resume(checkpoints)


@pytest.mark.parametrize("value", [print, [{1, 2}], torch.float16, np.ones(2), b"x", {(1, 2): 3}], ids=name_of)
def test_a_setting_that_no_file_holds_is_an_error_with_its_name_at_the_run(alone, value):
    with pytest.raises(TrainingError, match=r"^settings\['more'\]: .*Give a number"):
        small_run(alone, more=value)


def test_the_best_is_the_largest_or_the_smallest(alone):
    with pytest.raises(TrainingError, match="^best=.*must be 'min' or 'max'"):
        small_run(alone, best=("loss", "lowest"))


@pytest.mark.parametrize(
    "value",
    [7, np.float32(0.5), np.mean([1, 2]), np.ones(1), torch.tensor(0.5), float("nan"), np.inf],
    ids=name_of,
)
def test_a_metric_is_saved_and_resumed(checkpoints, alone, value):
    run = small_run(alone)
    run.position.end_epoch(value)
    run.save(checkpoints)
    again = small_run(alone)
    assert again.resume(checkpoints)
    assert again.position.accuracy == pytest.approx(np.ravel(value)[0], nan_ok=True)
    assert (again.position.epoch, again.position.best_epoch) == (1, 1)


@pytest.mark.parametrize("value", [None, "0.5", torch.ones(2), [0.5], True], ids=name_of)
def test_a_metric_that_is_no_number_is_an_error_at_the_call(value):
    with pytest.raises(TrainingError, match=r"^position.end_epoch\(value\): .*\. Give a number$"):
        Position().end_epoch(value)


def test_a_position_may_have_been_taken_before_the_resume(checkpoints, alone):
    run = small_run(alone)
    take_steps(run, 3)
    run.position.loss_sum = torch.tensor(2.5)
    run.save(checkpoints)
    again = small_run(alone)
    position = again.position
    assert again.resume(None) is None and position == Position()
    assert again.resume(checkpoints) == str(checkpoints.directory / "epoch-0000-step-000003.pt")
    assert position is again.position and position == Position(step=3, loss_sum=2.5)


@pytest.mark.parametrize(
    ("best", "values", "epochs"),
    [
        (("accuracy", "max"), (0, 70, 60, 70, 71), (1, 2, 2, 2, 5)),
        (("validation loss", "min"), (3.0, float("nan"), 2.0, 2.0, 2.5), (1, 1, 3, 3, 3)),
        (("accuracy", "max"), (float("nan"), 50, float("nan")), (1, 2, 2)),
    ],
)
def test_the_best_is_that_of_the_best_epoch(checkpoints, alone, best, values, epochs):
    run = small_run(alone, best=best)
    for value, epoch in zip(values, epochs):
        run.position.end_epoch(value)
        run.save(checkpoints)
        assert torch.load(checkpoints.directory / "best.pt")["position"]["epoch"] == epoch
        take_steps(run, 1)
        run.save(checkpoints)  # in the middle of an epoch nothing was measured
        assert torch.load(checkpoints.directory / "best.pt")["position"]["epoch"] == epoch
        run = small_run(alone, best=best)
        assert run.resume(checkpoints)


class Average:
    """Anything with a state."""

    def __init__(self, value=0.0):
        self.state = {"value": value, "tensor": torch.zeros(2), 3: (np.arange(2, dtype=np.uint32), [None])}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def scaler(scale):
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    scaler.scale(torch.ones(1))
    return scaler


def numbers_of(generator):
    """The next numbers of a generator."""
    return torch.rand(3, generator=generator) if isinstance(generator, torch.Generator) else generator.random(3)


def test_objects_beside_the_network_are_saved_and_resumed(checkpoints, alone):
    def objects(seed):
        torch.manual_seed(seed)
        other = plain()
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1 * seed, momentum=0.9)
        return {
            "scaler": scaler(2.0**seed),
            "average": torch.optim.swa_utils.AveragedModel(plain()),
            "network": torch.compile(other, backend="eager"),
            "optimizer": optimizer,
            "schedule": torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[seed, 9]),
            "torch": torch.Generator().manual_seed(seed),
            "numpy": np.random.default_rng(seed),
            "twister": np.random.Generator(np.random.MT19937(seed)),
            "legacy": np.random.RandomState(seed),
            "own": Average(seed),
        }

    run = small_run(alone, extra=objects(1))
    run.resume(checkpoints)
    run.extra["network"](torch.randn(16, 4)).sum().backward()
    run.extra["optimizer"].step()
    run.save(checkpoints)
    again = small_run(alone, extra=objects(2))
    assert again.resume(checkpoints)
    for name in ("scaler", "average", "network", "schedule"):
        assert equal(again.extra[name].state_dict(), run.extra[name].state_dict())
    assert equal(again.extra["optimizer"].state_dict()["state"], run.extra["optimizer"].state_dict()["state"])
    for name in ("torch", "numpy", "twister", "legacy"):
        assert numbers_of(again.extra[name]).tolist() == numbers_of(run.extra[name]).tolist()
    array, rest = again.extra["own"].state[3]
    assert again.extra["own"].state["value"] == 1 and array.tolist() == [0, 1] and array.dtype == np.uint32
    assert rest == [None]


@pytest.mark.parametrize("state", [print, {"a": [object()]}, {b"x": 1}, np.array([object()]), {1, 2}], ids=name_of)
def test_a_state_that_no_file_holds_is_an_error_with_its_name_at_the_resume(checkpoints, alone, state):
    with pytest.raises(TrainingError, match=r"^extra.own.value.*: .* A checkpoint holds"):
        small_run(alone, extra={"own": Average(state)}).resume(checkpoints)


def test_an_object_without_a_state_is_an_error_with_its_name_at_the_resume(checkpoints, alone):
    with pytest.raises(TrainingError, match=r"^extra\['lr'\]: float has no state_dict\(\) and load_state_dict\(\)"):
        small_run(alone, extra={"lr": 0.1}).resume(checkpoints)


class Subclass(torch.Tensor):
    """A kind of tensors that torch.load does not know."""


def test_a_network_that_no_file_holds_is_an_error_with_its_name_at_the_resume(checkpoints, alone):
    run = small_run(alone)
    run.network.register_buffer("kind", torch.ones(2).as_subclass(Subclass))
    with pytest.raises(TrainingError, match=r"^model\.kind: a checkpoint cannot hold it"):
        run.resume(checkpoints)
    group = small_run(alone)
    group.optimizer.param_groups[0]["reason"] = print
    with pytest.raises(TrainingError, match=r"^optimizer\.param_groups\.0\.reason: <class "):
        group.resume(checkpoints)


def test_random_states_of_python_and_numpy_continue(checkpoints, alone):
    def draw():
        return random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002, S311

    run = small_run(alone)
    run.save(checkpoints)
    expected = draw()
    again = small_run(alone)
    again.resume(checkpoints)
    assert draw() == expected


def test_the_look_for_what_cannot_be_saved_draws_no_number(checkpoints, alone):
    class Loader(Average):
        def state_dict(self):
            torch.rand(1)  # as a StatefulDataLoader does for its workers
            return super().state_dict()

    run = small_run(alone, extra={"loader": Loader()})
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    run.resume(checkpoints)
    assert torch.equal(torch.rand(1), expected)


def fused(parameters):
    return torch.optim.Adam(parameters, lr=0.1, fused=True)


@pytest.mark.parametrize(("before", "after"), [(ADAM, fused), (fused, ADAM)])
def test_a_run_continues_with_the_optimizer_that_its_own_machine_can_do(checkpoints, alone, before, after):
    run = small_run(alone, before)
    take_steps(run, 3)
    run.save(checkpoints)
    again = small_run(alone, after)
    again.resume(checkpoints)
    assert bool(again.optimizer.param_groups[0]["fused"]) is (after is fused)
    take_steps(again, 1)


def resume_fused(checkpoints, alone, **changes):
    """A run with a fused optimizer, from a checkpoint in which some tensors of the first weight were changed."""
    before = small_run(alone)
    take_steps(before, 1)
    change_file(before.save(checkpoints), lambda state: state["optimizer"]["state"][0].update(changes))
    after = small_run(alone, fused)
    after.resume(checkpoints)
    return after


def test_a_fused_optimizer_with_a_state_of_another_shape_is_an_error(checkpoints, alone):
    """Its step would overwrite memory."""
    with pytest.raises(TrainingError, match="does not fit this run .exp_avg of its optimizer has shape .3. for"):
        resume_fused(checkpoints, alone, exp_avg=torch.zeros(3))


def test_the_state_of_an_optimizer_gets_the_strides_of_the_run(checkpoints, alone):
    moments = torch.arange(32.0).view(4, 8).T
    run = resume_fused(checkpoints, alone, exp_avg=moments, exp_avg_sq=moments)
    loaded = run.optimizer.state[run.network[0].weight]["exp_avg"]
    assert loaded.stride() == (4, 1) and torch.equal(loaded, moments)


def narrower():
    return nn.Sequential(nn.Linear(4, 7), nn.Dropout(0.5), nn.Linear(7, 2))


def two_groups(parameters):
    return torch.optim.Adam([{"params": [parameter]} for parameter in parameters], lr=0.1)


#: What another program changes, and the words that report it.
OTHERS = [
    ({"epochs": 5}, r"written with epochs 3 \(now 5\)\. Use the same options and data, choose another .*--restart$"),
    ({"network": narrower}, r"does not fit this run \(.*size mismatch for 0.weight"),
    (
        {"optimizer": two_groups},
        r"does not fit this run \(loaded state dict has a different number of parameter groups",
    ),
    ({"schedule": lambda _: None}, r"written with schedule= True \(now False\)"),
    ({"best": ("f1", "max")}, r"written with best= \['accuracy', 'max'\] \(now \('f1', 'max'\)\)"),
    ({"extra": {"generator": torch.Generator()}}, r"written with extra= \[\] \(now \['generator'\]\)"),
    ({"data": "another"}, r"written with data= one \(now another\)"),
    ({"limits": {"step": 2}}, r"step 3 is beyond the end of this run \(2\)"),
]


@pytest.mark.parametrize(("options", "words"), OTHERS)
def test_a_checkpoint_of_another_run_is_refused(checkpoints, alone, options, words):
    before = small_run(alone, data="one")
    take_steps(before, 3)
    before.save(checkpoints)
    after = small_run(alone, **options)
    with pytest.raises(TrainingError, match=rf"^{checkpoints.directory}/epoch-0000-step-000003.pt: .*{words}"):
        after.resume(checkpoints)
    assert after.position == Position()


def test_a_checkpoint_without_a_fingerprint_of_the_data_is_taken(checkpoints, alone):
    small_run(alone).save(checkpoints)
    assert small_run(alone, data="one").resume(checkpoints)


def test_a_file_of_another_program_is_refused(checkpoints, alone):
    torch.save({"model": {}, "loss": 3.0}, checkpoints.directory / "epoch-0001-step-000000.pt")
    with pytest.raises(TrainingError, match="step-000000.pt: does not fit this run .'settings'.. Use the same program"):
        small_run(alone).resume(checkpoints)


def test_a_checkpoint_of_release_1_1_0_is_resumed(checkpoints, alone):
    """The file is of that release: a small run with the setting `more`, after 3 steps, and after 9 the weights."""
    folder = Path(__file__).parent / "release-1.1.0"
    (checkpoints.directory / "epoch-0000-step-000003.pt").write_bytes(
        (folder / "epoch-0000-step-000003.pt").read_bytes()
    )
    run = small_run(alone, more=(1, 2))
    assert run.resume(checkpoints) and run.position.step == 3
    take_steps(run, 6)
    expected = torch.load(folder / "weights.pt", weights_only=True)
    for name, weight in run.network.state_dict().items():
        torch.testing.assert_close(weight, expected[name])


#: Two ranks with a run, whose checkpoints are in a directory.
RANKS = """
sys.path.append({tests!r})
from training.checkpoint import Checkpoints
from small_runs import small_run
import numpy as np
with process_group(os.environ, use_gpu=False, timeout=60) as world:
    checkpoints = Checkpoints(Path({directory!r}), world)
    checkpoints.prepare()
    generator, shared = np.random.default_rng(world.rank), np.random.default_rng(7)
    run = small_run(world, extra={{"own": generator, "shared": shared}})
    {code}
"""


def run_on_ranks(size, directory, code, status=0):
    return run_code(size, RANKS.format(tests=str(Path(__file__).parent), directory=str(directory), code=code), status)


def test_what_differs_between_ranks_is_kept_for_each(tmp_path):
    draw = "print(*[f'{one.random():.6f}' for one in (generator, shared)])"
    saved = run_on_ranks(2, tmp_path / "run", f"run.save(checkpoints); {draw}")
    resumed = run_on_ranks(
        2, tmp_path / "run", f"generator.random(5); shared.random(5); run.resume(checkpoints); {draw}"
    )
    assert [rank.stdout for rank in resumed] == [rank.stdout for rank in saved]
    assert saved[0].stdout != saved[1].stdout
    other = run_on_ranks(1, tmp_path / "run", "run.resume(checkpoints)", status=1)
    assert "extra 'own' is of 2 ranks, each with its own, and these are 1 ranks" in other[0].stderr


def test_what_is_equal_on_all_ranks_continues_on_another_number_of_ranks(tmp_path):
    line = "run.extra.pop('own'); run.{}(checkpoints); print(shared.random())"
    saved = run_on_ranks(2, tmp_path / "run", line.format("save"))
    (resumed,) = run_on_ranks(1, tmp_path / "run", "shared.random(5); " + line.format("resume"))
    assert resumed.stdout == saved[0].stdout


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "position.loss_sum = 1.5 + world.rank",
            "position.loss_sum differs between the ranks: 1.5, 2.5. Set it to the sum",
        ),
        ("position.samples += 8 * world.rank", "position.samples differs between the ranks: 0, 8."),
        ("position.seconds += world.rank", None),
    ],
)
def test_a_position_that_each_rank_counts_for_itself_is_an_error(tmp_path, line, words):
    ranks = run_on_ranks(2, tmp_path / "run", f"run.{line}; run.save(checkpoints)", status=1 if words else 0)
    assert (words or "") in ranks[0].stderr and ranks[1].stderr == ""


def test_a_node_that_does_not_see_the_directory_is_named(tmp_path):
    code = """run.save(checkpoints)
    if world.rank:
        Path.exists = lambda path: False
    run.resume(checkpoints)"""
    ranks = run_on_ranks(2, tmp_path / "run", code, status=1)
    assert "step-000000.pt: not found on " in ranks[1].stderr and "All nodes must see the same" in ranks[1].stderr


def test_a_network_that_is_divided_among_the_ranks_needs_sharded_checkpoints(checkpoints, alone):
    from torch.distributed.fsdp import fully_shard

    run = small_run(alone, network=lambda: fully_shard(plain(), mesh=torch.distributed.init_device_mesh("cpu", (1,))))
    with pytest.raises(TrainingError, match=r"^model\.0\.weight: a DTensor, .*ShardedCheckpoints"):
        run.resume(checkpoints)
