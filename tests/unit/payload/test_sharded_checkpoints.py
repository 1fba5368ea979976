"""training/sharded: all ranks of lm_fsdp.py write, and no kill, damage or full disk leaves half a checkpoint."""

import argparse
import io
import json
import os
import pickle
import re
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from launching import PAYLOAD, launch
from small_runs import equal, flip_bit
from training.sharded import Interval, ShardedCheckpoints, parse_interval
from training.sharded.storage import digest

#: Of windows of 2 bytes the weights of places have 2 rows, so that one of three ranks has none.
LINE = ("--size", "100K", "--steps", 9, "--interval", 3, "--every", 3, "--keep", 2, "--context", 2, "--batch-size", 8)
#: A training that does not end by itself.
ENDLESS = ("--steps", 100_000, "--interval", 100_000)
MAIN = """
import lm_fsdp, torch
from training.language.options import parse_arguments
{change}
lm_fsdp.main(parse_arguments({line}))
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
    shards = [f"__{rank}_0.distcp" for rank in range(3)]
    assert sorted(os.listdir(path)) == [".metadata", *shards, "manifest.json"]
    dcp_to_torch_save(path, tmp_path / "weights.pt")
    assert equal(torch.load(tmp_path / "weights.pt", weights_only=True)["model"], weights(through))


def test_a_damaged_checkpoint_is_left_for_the_one_before_and_then_replaced(copy, resumed):
    shard = copy / "checkpoints" / "step-00000009" / "__1_0.distcp"
    _, _, chunks = json.loads((shard.parent / "manifest.json").read_text())["content"]["tensors"]["model.norm.weight"]
    first, length = next((first, length) for _, _, file, first, length in chunks if file == shard.name)
    content = shard.read_bytes()
    tensor = torch.load(io.BytesIO(content[first : first + length]), weights_only=True)
    flip_bit(shard, content.index(bytes(tensor.untyped_storage()), first))
    step, printed = resumed(copy)
    line = f"{shard.parent}: damaged (__1_0.distcp: wrong checksum of archive/data/0); trying the checkpoint before\n"
    assert step == "6" and line in printed
    assert names(copy) == ["step-00000006", "step-00000009"]
    assert resumed(copy)[0] == "9"


def test_a_damaged_checkpoint_is_not_kept_in_place_of_a_good_one(copy, resumed):
    damaged = (copy / "checkpoints" / "step-00000009").rename(copy / "checkpoints" / "step-00000007")
    (damaged / "manifest.json").unlink()
    assert resumed(copy)[0] == "6" and names(copy) == ["step-00000006", "step-00000009"]


def test_a_bit_that_is_flipped_anywhere_never_changes_the_result(through, resumed, tmp_path, draw):
    for name in ("__0_0.distcp", "__2_0.distcp", "manifest.json"):
        directory = shutil.copytree(through, tmp_path / name)
        path = directory / "checkpoints" / "step-00000009" / name
        flip_bit(path, draw.randrange(path.stat().st_size))
        assert resumed(directory)[0] in ("6" if name.endswith("json") else "69")  # 9: padding


#: The optimizer's state of the last checkpoint has another shape than its parameters.
ODD_SHAPES = """
from training.sharded import ShardedCheckpoints

def start(checkpoints, run, start=ShardedCheckpoints.start, **options):
    kept = {parameter: dict(state) for parameter, state in run.optimizer.state.items()}
    if run.position.step == 9:
        for state in run.optimizer.state.values():
            state["exp_avg"] = torch.cat([state["exp_avg"]] * 2)
    start(checkpoints, run, **{**options, "asynchronous": False})
    run.optimizer.state.update(kept)

ShardedCheckpoints.start = start
"""


def test_an_optimizer_state_of_another_shape_is_left_for_the_checkpoint_before(start, resumed, tmp_path):
    start(1, tmp_path / "run", change=ODD_SHAPES).wait(status=0)
    assert names(tmp_path / "run")[-1] == "step-00000009"
    assert resumed(tmp_path / "run")[0] == "6"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "__1_0.distcp").unlink(), "__1_0.distcp is missing"),
        (lambda path: ((path / "__1_0.distcp").unlink(), os.mkfifo(path / "__1_0.distcp")), "__1_0.distcp is missing"),
        (lambda path: os.truncate(path / "__0_0.distcp", 100), "__0_0.distcp: too short"),
        (lambda path: (path / "manifest.json").unlink(), "it has no manifest.json"),
        (lambda path: os.truncate(path / "manifest.json", 100), "wrong checksum of manifest.json"),
        (lambda path: rewrite(path, lambda content: elsewhere(content["tensors"])), "is invalid"),
        (lambda path: rewrite(path, lambda content: borrow(content["tensors"])), "__0_0.distcp holds another tensor"),
        (lambda path: rewrite(path, lambda content: content["tensors"]["model.norm.weight"][2].pop(0)), "is invalid"),
        (lambda path: rewrite(path, lambda content: content.update(size=2**80)), "is invalid"),
    ],
    ids=["missing", "FIFO", "short", "no manifest", "half a manifest", "elsewhere", "another", "a hole", "huge"],
)
def test_what_a_manifest_does_not_describe_is_damage(copy, damage, message):
    from training.checkpoint import UnusableError
    from training.sharded.storage import read_chunk, read_manifest

    path = copy / "checkpoints" / "step-00000009"
    damage(path)
    with pytest.raises(UnusableError, match=message):
        for dtype, _, chunks in read_manifest(path)["tensors"].values():
            for chunk in chunks:
                read_chunk(path, chunk, getattr(torch, dtype))


def test_an_asynchronous_save_writes_copies_which_the_training_does_not_change(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor
    from training.sharded.storage import ShardWriter

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        whole = torch.zeros(3)
        parted = distribute_tensor(torch.zeros(3), init_device_mesh("cpu", (1,)))
        staged = ShardWriter(tmp_path, {}, 1, {}, print).stage({"model": {"whole": whole, "parted": parted}})["model"]
        whole += 1
        parted._local_tensor += 1
        assert (staged["whole"].sum(), staged["parted"].to_local().sum()) == (0, 0)
    finally:
        dist.destroy_process_group()


def elsewhere(tensors):
    tensors["model.norm.weight"][2][0][2] = "../../x"


def borrow(tensors):
    tensors["model.norm.weight"][2][0][2:] = tensors["model.embedding.weight"][2][0][2:]


def rewrite(path, change):
    """Change a manifest as somebody would who knows its checksum."""
    content = json.loads((path / "manifest.json").read_text())["content"]
    change(content)
    text = json.dumps(content)
    (path / "manifest.json").write_text(f'{{"sha256":"{digest(text)}","content":{text}}}\n')


class Code:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_code_in_a_shard_and_in_metadata_is_not_run(copy, resumed, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code = io.BytesIO()
    torch.save(Code(), code)
    path = copy / "checkpoints" / "step-00000009"
    (path / ".metadata").write_bytes(pickle.dumps(Code()))
    assert resumed(copy)[0] == "9"
    (path / "__0_0.distcp").write_bytes(code.getvalue())

    def replace_tensors(content):
        for _, _, chunks in content["tensors"].values():
            for chunk in chunks:
                chunk[3:] = [0, len(code.getvalue())]

    rewrite(path, replace_tensors)
    step, printed = resumed(copy)
    assert step == "6" and not Path("executed").exists()
    assert re.search(rf"{path}: damaged .*it holds more than .*, and nothing in it was executed.; trying", printed)


def test_a_run_with_another_network_or_other_options_is_refused_in_one_sentence(copy, start):
    ranks = start(2, copy, "--size", "1M", "--lr", 0.1).wait(status=1)
    path = copy / "checkpoints" / "step-00000009"
    message = rf"rank 0: {path}: written with size 100K \(now 1M\), learning rate 0.002 \(now 0.1\). .*--restart\n"
    assert ranks[1].stderr == ""
    assert re.fullmatch(message, ranks[0].stderr)
    for name in names(copy):
        rewrite(copy / "checkpoints" / name, lambda content: content["values"]["settings"].update(size="1M"))
    (rank,) = start(1, copy, "--size", "1M").wait(status=1)
    assert "does not fit this run (other names, shapes or types of its tensors)" in rank.stderr


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_full_disk_is_one_line_and_nothing_half_done(copy, start, asynchronous):
    shutil.rmtree(copy / "checkpoints" / "step-00000009")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
    every = 1 if asynchronous else 100  # the last checkpoint is written by all ranks together
    ranks = start(2, copy, "--every", every, change=limit).wait(status=1)
    (error,) = [line for rank in ranks for line in rank.stderr.splitlines() if line]
    step = 7 if asynchronous else 9
    assert f"step-0000000{step}: cannot be written (File too large). The files before" in error
    assert names(copy) == ["step-00000006"]


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
    during = 0
    for kill in range(kills):
        size = draw.choice([1, 2, 2, 4]) if kills > 6 else 2 - kill % 2
        ranks = start(size, tmp_path, *ENDLESS, "--every", draw.choice(["2", "0.02s"]))
        if kill == 0:
            ranks.wait_until(lambda: any(checkpoints.glob("step-*")))
        elif draw.random() < 0.8:
            ranks.wait_until_said("resuming")
        time.sleep(draw.uniform(0, 0.3))
        if kill % 2:
            ranks.wait_until(lambda: any(checkpoints.glob(".step-*.*/__*")))
            time.sleep(draw.uniform(0, 0.01))
        for process in draw.sample(ranks.processes, size):
            process.kill()
        left = [rank.status for rank in ranks.wait()]
        assert -signal.SIGKILL in left
        during += any(name.startswith(".") for name in names(tmp_path))
        newest = max((int(name[5:]) for name in names(tmp_path) if name.startswith("step-")), default=-1)
        assert newest >= reached, "no start lost what was saved"
        reached = newest
    print(f"{during} of {kills} left a half-written checkpoint")
    assert reached > 0
    ranks = start(2, tmp_path, *ENDLESS, "--every", 1000)
    ranks.wait_until_said("resuming")
    _, printed = stopped(ranks, 0)
    assert f"resuming after {reached} steps" in printed
    assert len(names(tmp_path)) == 2 and all(name.startswith("step-") for name in names(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["checkpoints", "metrics.jsonl"]


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("500", Interval(steps=500)),
        ("90s", Interval(seconds=90)),
        ("30m", Interval(seconds=1800)),
        ("1.5h", Interval(seconds=5400)),
    ],
)
def test_an_interval_is_steps_or_a_time(text, interval):
    assert parse_interval(text) == parse_interval(str(interval)) == interval  # trackers show it as a text


@pytest.mark.parametrize("text", ["", "0", "0m", "-3", "1.5", "nan", "inf", "3d", "m", "1e3", "9" * 400])
def test_another_text_is_an_error_that_names_the_forms(text):
    with pytest.raises(argparse.ArgumentTypeError, match="a number of steps, or a time such as 90s, 30m or 2h, found"):
        parse_interval(text)


class Saved(ShardedCheckpoints):
    """Notes the steps at which a checkpoint was started."""

    steps = ()

    def start(self, run, **_):
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
    others = Saved(tmp_path, alone._replace(rank=1), every=Interval(seconds=1))
    now += 1000
    others.save_if_due(SimpleNamespace(position=SimpleNamespace(step=8)))
    assert others.steps == ()  # whatever its own clock tells
