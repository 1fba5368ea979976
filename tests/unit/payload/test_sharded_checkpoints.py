"""training/sharded: all ranks write, any number of ranks resumes, and no kill leaves half a checkpoint."""

import errno
import io
import json
import os
import pickle
import random
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from launching import PAYLOAD, launch
from training.sharded.storage import ShardWriter, digest

SCRIPT = Path(__file__).with_name("sharded_training.py")


@pytest.fixture(scope="module")
def start(zygote):
    def start(size, *arguments, script=SCRIPT):
        environments = [{"PYTHONPATH": str(PAYLOAD)}] * size
        return launch(size, (script, *arguments), environments=environments, start=zygote.start)

    return start


def losses(ranks):
    return re.findall(r"step (\d+) loss (\S+)", ranks[0].stdout)


def names(directory):
    return sorted(os.listdir(directory / "checkpoints"))


def statuses(ranks):
    return [rank.status for rank in ranks], "".join(rank.stderr for rank in ranks)


@pytest.fixture(scope="module")
def through(start, tmp_path_factory):
    """An uninterrupted run of 24 steps on one rank: its directory, and its losses."""
    directory = tmp_path_factory.mktemp("through")
    ranks = start(1, directory, 24, "--synchronous").wait()
    assert statuses(ranks) == ([0], "")
    return directory, losses(ranks)


@pytest.fixture(scope="module")
def resharded(start, tmp_path_factory):
    """A run on 4, then 2, 1 and 4 ranks: its directory, and what is left of the ranks."""
    directory = tmp_path_factory.mktemp("resharded")
    return directory, [start(size, directory, steps).wait() for size, steps in ((4, 6), (2, 12), (1, 18), (4, 24))]


@pytest.fixture
def damaged(resharded, tmp_path):
    """A copy of that run, for tests that change it."""
    return shutil.copytree(resharded[0], tmp_path / "run")


def test_four_then_two_then_one_then_four_ranks_have_the_losses_of_one_in_one_go(through, resharded):
    directory, parts = resharded
    for ranks in parts:
        assert statuses(ranks) == ([0] * len(ranks), "")
    found = [line for ranks in parts for line in losses(ranks)]
    assert [step for step, _ in found] == [step for step, _ in through[1]]
    assert [float(loss) for _, loss in found] == pytest.approx([float(loss) for _, loss in through[1]], rel=1e-4)
    assert [re.search(r"(starting|step-\d+)\n", ranks[0].stdout)[1] for ranks in parts] == [
        "starting",
        "step-00000006",
        "step-00000012",
        "step-00000018",
    ]
    for one, other in zip(*(torch.load(each / "weights.pt", weights_only=True) for each in (through[0], directory))):
        assert (one - other).norm() <= 1e-4 * one.norm()


def test_the_newest_are_kept_as_checkpoints_of_torch_that_other_programs_read(resharded, tmp_path):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    directory, _ = resharded
    assert names(directory) == ["step-00000020", "step-00000024"]
    shards = [f"__{rank}_0.distcp" for rank in range(4)]
    assert sorted(os.listdir(directory / "checkpoints" / "step-00000024")) == [".metadata", *shards, "manifest.json"]
    dcp_to_torch_save(directory / "checkpoints" / "step-00000024", tmp_path / "weights.pt")
    found = torch.load(tmp_path / "weights.pt", weights_only=True)
    weights = torch.load(directory / "weights.pt", weights_only=True)
    assert all(torch.equal(one, other) for one, other in zip(found["model"].values(), weights))


def test_a_network_that_is_divided_in_another_way_continues(through, resharded, damaged, start):
    ranks = start(2, damaged, 27, "--parallel", "none", "--fused").wait()
    assert statuses(ranks) == ([0, 0], "")
    assert "step-00000024\n" in ranks[0].stdout and len(losses(ranks)) == 3


def test_a_damaged_checkpoint_is_left_for_the_one_before_and_then_replaced(damaged, start):
    shard = damaged / "checkpoints" / "step-00000024" / "__2_0.distcp"
    content = bytearray(shard.read_bytes())
    _, _, chunks = json.loads((shard.parent / "manifest.json").read_text())["content"]["tensors"]["model.2.weight"]
    first, length = next((first, length) for _, _, file, first, length in chunks if file == shard.name)
    tensor = torch.load(io.BytesIO(content[first : first + length]), weights_only=True)
    content[content.index(bytes(tensor.untyped_storage()))] ^= 1
    shard.write_bytes(content)
    ranks = start(2, damaged, 22).wait()
    assert statuses(ranks) == ([0, 0], "")
    line = f"{shard.parent}: damaged (__2_0.distcp: wrong checksum of archive/data/0); trying the checkpoint before\n"
    assert line in ranks[0].stdout
    assert names(damaged) == ["step-00000020", "step-00000022", "step-00000024"]
    ranks = start(2, damaged, 24).wait()
    assert "step-00000022\n" in ranks[0].stdout and names(damaged) == ["step-00000022", "step-00000024"]
    (shard.parent / "manifest.json").unlink()
    assert statuses(start(1, damaged, 25).wait()) == ([0], "")
    assert names(damaged) == ["step-00000022", "step-00000025"], "the damaged one is not kept for a good one"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "__1_0.distcp").unlink(), "__1_0.distcp is missing"),
        (lambda path: os.truncate(path / "__0_0.distcp", 100), "__0_0.distcp: too short"),
        (lambda path: (path / "manifest.json").unlink(), "it has no manifest.json"),
        (lambda path: os.truncate(path / "manifest.json", 100), "wrong checksum of manifest.json"),
        (lambda path: rewrite(path, lambda content: elsewhere(content["tensors"])), "is invalid"),
        (lambda path: rewrite(path, lambda content: content["tensors"]["model.0.weight"][2].pop(0)), "is invalid"),
        (lambda path: rewrite(path, lambda content: content.update(size=2**80)), "is invalid"),
        (lambda path: make_fifo(path / "__3_0.distcp"), "__3_0.distcp: no regular file"),
    ],
    ids=["missing", "short", "no manifest", "half a manifest", "another place", "a hole", "huge", "FIFO"],
)
def test_what_a_manifest_does_not_describe_is_damage(damaged, damage, message):
    from training.sharded.storage import DamagedError, read_chunk, read_manifest

    path = damaged / "checkpoints" / "step-00000024"
    damage(path)
    with pytest.raises(DamagedError, match=message):
        for dtype, _, chunks in read_manifest(path)["tensors"].values():
            for chunk in chunks:
                read_chunk(path, chunk, getattr(torch, dtype))


def elsewhere(tensors):
    tensors["model.0.weight"][2][0][2] = "../../x"


def make_fifo(path):
    path.unlink()
    os.mkfifo(path)


def rewrite(path, change):
    """Change a manifest as somebody would who knows its checksum."""
    content = json.loads((path / "manifest.json").read_text())["content"]
    change(content)
    text = json.dumps(content)
    (path / "manifest.json").write_text(f'{{"sha256":"{digest(text)}","content":{text}}}\n')


class Code:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_code_in_a_shard_and_in_metadata_is_not_run(damaged, start, tmp_path):
    path = damaged / "checkpoints" / "step-00000024"
    (path / ".metadata").write_bytes(pickle.dumps(Code()))
    ranks = start(1, damaged, 25).wait()
    assert statuses(ranks) == ([0], "") and not Path("executed").exists()

    path = damaged / "checkpoints" / "step-00000025"
    code = io.BytesIO()
    torch.save(Code(), code)
    (path / "__0_0.distcp").write_bytes(code.getvalue())

    def replace_tensors(content):
        for _, _, chunks in content["tensors"].values():
            for chunk in chunks:
                chunk[3:] = [0, len(code.getvalue())]

    rewrite(path, replace_tensors)
    ranks = start(1, damaged, 26).wait()
    assert statuses(ranks) == ([0], "") and not Path("executed").exists()
    assert re.search(
        rf"{path}: damaged .*it holds more than .*, and nothing in it was executed.; trying", ranks[0].stdout
    )


def test_a_run_with_another_network_or_other_options_is_refused_in_one_sentence(damaged, start):
    ranks = start(2, damaged, 30, "--width", 14, "--lr", 0.1).wait()
    assert [rank.status for rank in ranks] == [1, 1] and ranks[1].stderr == ""
    path = damaged / "checkpoints" / "step-00000024"
    message = rf"rank 0: {path}: written with width 13 \(now 14\), lr 0.05 \(now 0.1\). .*--restart\n"
    assert re.fullmatch(message, ranks[0].stderr)
    for name in names(damaged):
        rewrite(damaged / "checkpoints" / name, lambda content: content["values"]["settings"].update(width=14))
    (rank,) = start(1, damaged, 30, "--width", 14).wait()
    assert rank.status == 1
    assert "does not fit this run (other names, shapes or types of its tensors)" in rank.stderr


def test_a_full_disk_is_one_line_and_nothing_half_done(damaged, start):
    before = names(damaged)
    limited = damaged / "limited.py"
    limit = "    import resource\n    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
    limited.write_text(SCRIPT.read_text().replace("def main():\n", f"def main():\n{limit}", 1))
    for kind in ((), ("--synchronous",)):
        ranks = start(2, damaged, 60, *kind, script=limited).wait()
        assert [rank.status for rank in ranks] == [1, 1]
        errors = [line for rank in ranks for line in rank.stderr.splitlines() if line]
        assert len(errors) == 1
        assert "step-00000025: cannot be written (File too large). The files before" in errors[0]
        assert names(damaged) == before


def test_the_reason_is_kept_where_torch_save_hides_it(tmp_path, alone, limit_files):
    """A write that is too large for Python's buffer fails, and torch.save fails anew when it ends its file."""
    writer = ShardWriter(tmp_path / "step", {}, 1, {}, print)
    with limit_files(2000), pytest.raises(dcp.CheckpointException) as fault:
        dcp.save({"weight": torch.ones(10_000)}, storage_writer=writer)
    assert fault.value.failures[0][0].errno == errno.EFBIG


def test_a_stop_signal_saves_on_all_ranks_and_the_next_start_continues(start, tmp_path):
    ranks = start(2, tmp_path, 10_000, "--every", "1000", "--pause", "0.005")
    wait_for(ranks, tmp_path, "step 5 ")
    os.kill(ranks.processes[1].pid, signal.SIGTERM)
    ended = ranks.wait()
    assert statuses(ended) == ([75, 75], "")
    steps = len(losses(ended))
    assert f"stopped, saved in {tmp_path}/checkpoints/step-{steps:08}\n" in ended[0].stdout
    (rank,) = start(1, tmp_path, steps + 1).wait()
    assert rank.status == 0 and losses([rank])[0][0] == str(steps + 1)


def wait_for(ranks, directory, text=None, condition=lambda: False):
    """Return when rank 0 has written a text, when a condition holds, or when a rank has ended."""
    output = ranks.processes[0].outputs[0]
    end = time.monotonic() + 300
    while time.monotonic() < end and not condition():
        if text and text in Path(f"/proc/self/fd/{output.fileno()}").read_text():
            return
        time.sleep(0.001)


@pytest.mark.parametrize("kills", [6, pytest.param(30, marks=pytest.mark.thorough)])
def test_kills_at_any_moment_lose_no_checkpoint_and_leave_no_file(start, tmp_path, kills):
    """Every second one comes while a checkpoint is written."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"random.Random({seed})")  # pytest shows it where this fails
    moments = random.Random(seed)  # noqa: S311
    checkpoints = tmp_path / "checkpoints"
    reached = -1
    during = 0
    for kill in range(kills):
        size = moments.choice([1, 2, 2, 4]) if kills > 6 else 2 - kill % 2
        ranks = start(size, tmp_path, 100_000, "--every", moments.choice(["2", "0.02s"]))
        if kill == 0:
            wait_for(ranks, tmp_path, condition=lambda: any(checkpoints.glob("step-*")))
        elif moments.random() < 0.8:
            wait_for(ranks, tmp_path, " loss ")
        time.sleep(moments.uniform(0, 0.3))
        if kill % 2:
            wait_for(ranks, tmp_path, condition=lambda: any(checkpoints.glob(".step-*.*/__*")))
            time.sleep(moments.uniform(0, 0.01))
        for process in moments.sample(ranks.processes, size):
            process.kill()
        left = [rank.status for rank in ranks.wait()]
        assert -signal.SIGKILL in left
        during += any(name.startswith(".") for name in names(tmp_path))
        newest = max((int(name[5:]) for name in names(tmp_path) if name.startswith("step-")), default=-1)
        assert newest >= reached, "no start lost what was saved"
        reached = newest
    print(f"{during} of {kills} left a half-written checkpoint")
    assert reached > 0
    ranks = start(2, tmp_path, reached + 9).wait()
    assert statuses(ranks) == ([0, 0], "") and losses(ranks)[0][0] == str(reached + 1)
    assert not [name for name in names(tmp_path) if not name.startswith("step-")]
    assert len(names(tmp_path)) == 2 and sorted(os.listdir(tmp_path)) == ["checkpoints", "weights.pt"]
