"""training/sharded: all ranks write, what goes on equals an uninterrupted run, and nothing leaves half a checkpoint."""

import argparse
import os
import re
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from launching import PAYLOAD, launch, run_code
from small_runs import equal, flip_bit
from training.sharded import Interval, ShardedCheckpoints, parse_interval

pytestmark = pytest.mark.slow

#: Of windows of 2 bytes the weights of places have 2 rows, so that one of three ranks has none.
LINE = ("--size", "100K", "--steps", 9, "--interval", 3, "--every", 3, "--keep", 2, "--context", 2, "--batch-size", 8)
#: A training that does not end by itself.
ENDLESS = ("--steps", 100_000, "--interval", 100_000)
MAIN = """
import lm_fsdp, torch
from training.language.options import parse_arguments
{change}
lm_fsdp.run_training(lm_fsdp.train, parse_arguments({line}), interval=lm_fsdp.STOP_INTERVAL)
"""


@pytest.fixture(scope="module")
def start(text):
    """A function that starts lm_fsdp.py in a directory, with further options, and with changes in Python."""

    def start(size, directory, *options, change=""):
        line = list(map(str, ("--data", text, *LINE, "--modelpath", directory, *options)))
        return launch(size, "-c", MAIN.format(change=change, line=line), PYTHONPATH=str(PAYLOAD))

    return start


def names(directory):
    return sorted(os.listdir(directory / "checkpoints"))


def weights(directory):
    return torch.load(directory / "lm_fsdp.pt", weights_only=True)


@pytest.fixture(scope="module")
def through(start, tmp_path_factory):
    """The directory of a run on three ranks without an interruption."""
    directory = tmp_path_factory.mktemp("through") / "run"
    start(3, directory).wait(status=0)
    return directory


@pytest.fixture
def copy(through, tmp_path):
    """A copy of that run, for tests that change it."""
    return shutil.copytree(through, tmp_path / "run")


@pytest.fixture
def resumed(start, through):
    """A function that resumes a run on two ranks, which must end as the uninterrupted one; the step, and the output."""

    def resume(directory):
        (directory / "lm_fsdp.pt").unlink()
        ranks = start(2, directory).wait(status=0)
        for name, weight in weights(through).items():
            assert (weights(directory)[name] - weight).norm() <= 1e-4 * weight.norm()
        return re.search(r"resuming after (\d) steps", ranks[0].stdout)[1], ranks[0].stdout

    return resume


def test_the_newest_are_kept_as_checkpoints_of_torch_that_other_programs_read(through, tmp_path):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    assert names(through) == ["step-00000006", "step-00000009"]
    path = through / "checkpoints" / "step-00000009"
    dcp_to_torch_save(path, tmp_path / "weights.pt")
    assert equal(torch.load(tmp_path / "weights.pt", weights_only=True)["model"], weights(through))
    assert torch.load(path / "values.pt", weights_only=True)["position"]["step"] == 9


def test_a_damaged_checkpoint_is_left_for_the_one_before_and_then_replaced(copy, resumed):
    shard = copy / "checkpoints" / "step-00000009" / "__1_0.distcp"
    flip_bit(shard, 5000)
    step, printed = resumed(copy)
    assert step == "6"
    assert f"{shard.parent}: damaged (wrong checksum of __1_0.distcp); trying the checkpoint before\n" in printed
    assert names(copy) == ["step-00000006", "step-00000009"]
    assert resumed(copy)[0] == "9"


def test_a_bit_that_is_flipped_in_any_file_is_found_and_so_is_one_that_is_missing_or_short(copy, alone, draw):
    path = copy / "checkpoints" / "step-00000009"
    one = ShardedCheckpoints(path.parent, alone)
    two = [ShardedCheckpoints(path.parent, alone._replace(rank=rank, size=2)) for rank in range(2)]
    assert one.find_damage(path) is None
    files = sorted(path.iterdir())
    assert len(files) == 6
    for file in files:
        content = file.read_bytes()
        place = draw.randrange(len(content))
        for damage in (lambda: flip_bit(file, place), lambda: os.truncate(file, place), file.unlink):  # noqa: B023
            damage()
            assert one.find_damage(path), file
            assert any(each.find_damage(path) for each in two)
            file.write_bytes(content)
    assert one.find_damage(path) is None


def test_another_network_other_options_and_an_older_release_are_refused_in_one_sentence(copy, start):
    path = copy / "checkpoints" / "step-00000009"
    ranks = start(2, copy, "--size", "1M").wait(status=1)
    assert ranks[1].stderr == ""
    assert re.fullmatch(rf"rank 0: {path}: written with .*100K \(now 1M\).*--restart\n", ranks[0].stderr)
    other = "import training.language.run as run; run.Run.__post_init__ = lambda run: run.settings.update(size='100K')"
    (rank,) = start(1, copy, "--size", "1M", change=other).wait(status=1)
    assert re.fullmatch(rf"rank 0: {path}: does not fit this run \(.*loading state_dict.*--restart\n", rank.stderr)
    (path / "manifest.json").touch()
    (rank,) = start(1, copy).wait(status=1)
    assert re.fullmatch(rf"rank 0: {path}: written by release 1\.1\.0 or older\. .*--restart\n", rank.stderr)


@pytest.mark.parametrize("every", [1, 100])
def test_a_full_disk_ends_all_ranks_and_the_checkpoints_before_stay(copy, start, resumed, every):
    shutil.rmtree(copy / "checkpoints" / "step-00000009")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
    ranks = start(2, copy, "--every", every, change=limit).wait(status=1)
    assert f"{copy / 'checkpoints'}: the checkpoint cannot be written. Is the disk full?" in ranks[0].stderr
    assert ranks[1].stderr == ""
    assert [name for name in names(copy) if name.startswith("step-")] == ["step-00000006"]
    assert resumed(copy)[0] == "6"
    assert names(copy) == ["step-00000006", "step-00000009"]


def stopped(ranks, rank):
    """Ask a rank of a training to stop; the step after which all ranks stopped, and what rank 0 printed."""
    ranks.signal(rank)
    ended = ranks.wait(status=75)
    assert [rank.stderr for rank in ended] == [""] * len(ended)
    return int(re.search(r"stopped after (\d+) steps, saved in ", ended[0].stdout)[1]), ended[0].stdout


def test_a_stop_signal_saves_on_all_ranks_and_the_next_start_continues(start, tmp_path):
    ranks = start(2, tmp_path, *ENDLESS, "--interval", 1, "--every", 1000)
    ranks.wait_until_said("step 5/")
    step, _ = stopped(ranks, 1)
    assert step > 4 and names(tmp_path) == [f"step-{step:08}"]
    ranks = start(1, tmp_path, *ENDLESS, "--every", 1000)
    ranks.wait_until_said("resuming")
    again, printed = stopped(ranks, 0)
    assert again >= step and f"resuming after {step} steps, from {tmp_path}" in printed


@pytest.mark.parametrize("kills", [6, pytest.param(30, marks=pytest.mark.thorough)])
def test_kills_at_any_moment_lose_no_checkpoint_and_leave_no_file(start, tmp_path, draw, kills):
    """Every second one comes while a checkpoint is written."""
    checkpoints = tmp_path / "checkpoints"
    reached = -1
    for kill in range(kills):
        ranks = start(draw.choice([1, 2]), tmp_path, *ENDLESS, "--every", draw.choice(["2", "0.02s"]))
        if kill == 0:
            ranks.wait_until(lambda: any(checkpoints.glob("step-*")))
        elif draw.random() < 0.8:
            ranks.wait_until_said("resuming")
        if kill % 2:
            ranks.wait_until(lambda: any(checkpoints.glob(".step-*.*/__*")))
        time.sleep(draw.uniform(0, 0.1))
        ranks.kill()
        assert -signal.SIGKILL in [rank.status for rank in ranks.wait()]
        newest = max((int(name[5:]) for name in names(tmp_path) if name.startswith("step-")), default=-1)
        assert newest >= reached, "no start lost what was saved"
        reached = newest
    assert reached > 0
    ranks = start(2, tmp_path, *ENDLESS, "--every", 1000)
    ranks.wait_until_said("resuming")
    _, printed = stopped(ranks, 0)
    assert f"resuming after {reached} steps" in printed
    assert len(names(tmp_path)) == 2 and all(name.startswith("step-") for name in names(tmp_path))


#: Each case is saved after 3 steps, and written only after 6 more, which the copy must not show.
TRIPS = """
sys.path.insert(0, {tests!r})
from small_runs import ADAM, NETWORKS, OPTIMIZERS, SCHEDULES, equal, plain, small_run, take_steps
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from training import TrainingError
from training.sharded import ShardedCheckpoints
from training.sharded.storage import ShardWriter

trained = threading.Event()
write_data = ShardWriter.write_data

def write_later(*arguments):
    trained.wait()
    return write_data(*arguments)

ShardWriter.write_data = write_later

def divide(make):
    def network():
        network = make()
        for child in network.children():
            if isinstance(child, nn.Linear):
                fully_shard(child)
        return fully_shard(network)
    return network

def own_parts(state):
    return {{name: getattr(value, "_local_tensor", value) for name, value in state.items()}}

def trip(world, name, make):
    try:
        with ShardedCheckpoints(Path({directory!r}) / name.replace("/", " "), world) as checkpoints:
            checkpoints.prepare()
            through = make()
            through.resume(checkpoints)
            take_steps(through, 3)
            trained.clear()
            checkpoints.start(through)
            take_steps(through, 6)
            trained.set()
            checkpoints.wait()
            resumed = make()
            resumed.resume(checkpoints)
            take_steps(resumed, 6)
        runs = (through, resumed)
        states = [own_parts(run.network.state_dict()) for run in runs]
        rates = [[float(group["lr"]) for group in run.optimizer.param_groups] for run in runs]
        is_same = equal(*states) and rates[0] == rates[1] and through.position == resumed.position
        if isinstance(through.extra.get("it"), nn.Module):
            is_same = is_same and equal(*(own_parts(run.extra["it"].state_dict()) for run in runs))
        return "same" if is_same else "different"
    except TrainingError as error:
        return str(error)
    except SystemExit:
        return ""

with process_group(os.environ, use_gpu=False, timeout=600) as world:
{cases}
"""


def trips(directory, cases, size=2):
    """What code that prints `name: result` for its cases prints, by names; an error is the one of its rank."""
    code = TRIPS.format(tests=str(Path(__file__).parent), directory=str(directory), cases=cases)
    results = {}
    for rank in run_code(size, code):
        for line in rank.stdout.splitlines():
            name, _, result = line.partition(": ")
            results[name] = result or results.get(name, "")
    return results


#: torch itself cannot train with these on divided weights.
NO_DTENSORS = ("Adafactor", "LBFGS", "LBFGS wolfe", "Rprop", "tied", "odd parameters")


@pytest.fixture
def share(request):
    """Each case is tried with --thorough, else one in so many: plain checkpoints are always tried with all of them."""
    return 1 if request.config.getoption("--thorough") else 4


def test_a_divided_network_with_each_optimizer_and_schedule_continues(tmp_path, share):
    results = trips(
        tmp_path,
        f"""
    for case in (*OPTIMIZERS, *SCHEDULES, *NETWORKS)[::{share}]:
        if case.name in {NO_DTENSORS}:
            continue
        kind = "optimizer" if case in OPTIMIZERS else "schedule" if case in SCHEDULES else "network"
        options = {{"network": divide(plain), kind: divide(case.make) if kind == "network" else case.make}}
        print(case.name, trip(world, case.name, lambda: small_run(world, path=Path("x"), **options)), sep=": ")
""",
    )
    assert len(results) > 45 // share and set(results.values()) == {"same"}, results


def test_a_network_that_each_rank_has_continues_with_any_optimizer(tmp_path, share):
    results = trips(
        tmp_path,
        f"""
    for case in OPTIMIZERS[::{share}]:
        print(case.name, trip(world, case.name, lambda: small_run(world, case.make)), sep=": ")
    for case in NETWORKS[::{share}]:
        if case.name != "odd parameters":  # not all of them are used
            make = lambda: DistributedDataParallel(case.make())
            print(case.name, trip(world, case.name, lambda: small_run(world, network=make)), sep=": ")
""",
    )
    assert len(results) > 30 // share and set(results.values()) == {"same"}, results


EXTRA = """
    class Loader:
        def state_dict(self):
            return {"place": dist.get_rank()}

        def load_state_dict(self, state):
            assert state == {"place": dist.get_rank()}

    class Local(torch.optim.SGD):
        def step(self, closure):
            loss = super().step(closure)
            for state in self.state.values():
                state["half"] = state["momentum_buffer"].to_local()
            return loss

    def with_extra(make):
        run = small_run(world, network=divide(plain))
        extra = make(run.network)
        run.extra = {"it": extra}
        first_step = run.optimizer.step
        def step(closure):
            loss = first_step(closure)
            if isinstance(extra, torch.optim.Optimizer):
                extra.step()
            elif isinstance(extra, nn.Module):
                for average, weight in zip(extra.parameters(), run.network.parameters()):
                    average.data.lerp_(weight.data, 0.5)
            return loss
        run.optimizer.step = step
        return run

    cases = {
        "second optimizer": lambda: with_extra(lambda network: ADAM(network.parameters())),
        "average": lambda: with_extra(lambda _: divide(plain)()),
        "loader": lambda: with_extra(lambda _: Loader()),
        "FSDP1": lambda: small_run(world, network=lambda: FullyShardedDataParallel(plain(), device_id="cpu")),
        "local": lambda: small_run(world, lambda weights: Local(weights, lr=0.1, momentum=0.9), network=divide(plain)),
    }
    for name in %r:
        print(name, trip(world, name, cases[name]), sep=": ")
"""


def test_networks_and_optimizers_in_extra_continue_and_what_cannot_is_an_error(tmp_path):
    continues = ("second optimizer", "average", "loader")
    assert set(trips(tmp_path, EXTRA % (continues,)).values()) == {"same"}
    errors = trips(tmp_path, EXTRA % (("FSDP1", "local"),))
    assert "FullyShardedDataParallel cannot be saved" in errors["FSDP1"]
    assert re.match(r"optimizer\.state\.0\.half: its parameter is divided", errors["local"])
    alone = trips(tmp_path, EXTRA % (("second optimizer", "loader"),), size=1)
    assert alone["second optimizer"] == "same"  # and now on one rank
    assert "extra 'it' is of 2 ranks, each with its own, and these are 1 ranks" in alone["loader"]


def test_an_interval_is_steps_or_a_time():
    assert parse_interval("500") == Interval(steps=500)
    assert parse_interval("1.5h") == parse_interval("90m") == parse_interval("5400s") == Interval(seconds=5400)


@pytest.mark.parametrize("text", ["", "0", "0m", "-3", "1.5", "nan", "3d", "m", "1e3", "9" * 400])
def test_another_text_is_an_error_that_names_the_forms(text):
    with pytest.raises(argparse.ArgumentTypeError, match="a number of steps, or a time such as 90s, 30m or 2h, found"):
        parse_interval(text)


class Saved(ShardedCheckpoints):
    """Notes the steps at which a checkpoint was started."""

    steps = ()

    def start(self, run):
        self.steps += (run.position.step,)
        self.began = time.monotonic()


@pytest.mark.parametrize(("every", "steps"), [(Interval(steps=3), (3, 6, 9)), (Interval(seconds=100), (16, 40))])
def test_a_checkpoint_is_due_after_steps_or_by_the_clock_of_rank_0_at_every_eighth_step(
    tmp_path, alone, monkeypatch, every, steps
):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    checkpoints = Saved(tmp_path, alone, every=every)
    for step in range(1, 10 if every.steps else 50):
        now += 9 if step < 17 else 5
        checkpoints.save_if_due(SimpleNamespace(position=SimpleNamespace(step=step)))
    assert checkpoints.steps == steps
