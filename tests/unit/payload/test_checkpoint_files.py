"""training/checkpoint.py: which files there are, which are kept, one run at a time, and no damage goes unnoticed."""

import errno
import os
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from small_runs import flip_bit, small_run, take_steps
from torch import nn
from training import TrainingError
from training.checkpoint import Checkpoints, make_directory, save_model
from training.sharded import ShardedCheckpoints

STATE = {"weight": torch.arange(6.0).view(2, 3)}


@pytest.mark.parametrize(
    ("directory", "reason"), [("/proc/x", "No such file or directory"), ("/dev/null/x", "Not a directory")]
)
def test_a_directory_that_cannot_be_made_is_an_error_with_the_reason_of_the_system(directory, reason):
    with pytest.raises(TrainingError, match=rf"^{directory}: cannot be written \({reason}\). .*--modelpath"):
        make_directory(Path(directory))


def names(checkpoints):
    return sorted(os.listdir(checkpoints.directory))


@pytest.fixture
def save(checkpoints, alone):
    """A function that saves a run at a place."""
    run = small_run(alone)

    def save(epoch, step=0, *, best=False):
        run.position.epoch = epoch
        run.position.step = step
        run.position.best_epoch = epoch if best else 0
        return Path(run.save(checkpoints))

    return save


@pytest.fixture
def resumed(checkpoints, alone):
    """A function that resumes a run and returns where it is."""

    def resume():
        run = small_run(alone)
        run.resume(checkpoints)
        return run.position.epoch, run.position.step

    return resume


def best_epoch(checkpoints):
    return torch.load(checkpoints.directory / "best.pt", weights_only=True)["position"]["epoch"]


def test_the_last_by_their_numbers_and_the_best_are_kept(checkpoints, save, resumed):
    for epoch, step in ((2, 0), (3, 0), (9999, 0), (9999, 1_000_000), (10_000, 0)):
        save(epoch, step, best=epoch == 2)
        assert resumed() == (epoch, step)
    kept = ["epoch-9999-step-000000.pt", "epoch-9999-step-1000000.pt", "epoch-10000-step-000000.pt"]
    assert [path.name for path in checkpoints.paths()] == kept
    assert names(checkpoints) == sorted(["best.pt", *kept])
    assert best_epoch(checkpoints) == 2


@pytest.mark.parametrize("kind", [Checkpoints, ShardedCheckpoints])
def test_files_that_are_not_checkpoints_are_left_alone(tmp_path, alone, kind):
    others = ["notes.txt", ".hidden", "epoch-3.pt", "step-00000007.bak", ".notes.txt.0a1b2c3d", ".step-mine", "step-7"]
    checkpoints = kind(tmp_path / "checkpoints", alone)
    checkpoints.prepare()
    for directory in (tmp_path, checkpoints.directory):
        for name in others:
            (directory / name).write_text("mine")
    checkpoints.prepare(restart=True)
    assert names(checkpoints) == sorted(others)
    assert sorted(os.listdir(tmp_path)) == sorted(["checkpoints", *others])


def test_what_a_killed_run_left_half_written_is_cleared_away(checkpoints, save):
    save(1)
    for path in (
        "checkpoints/.epoch-0002-step-000000.pt.0a1b2c3d.incomplete",
        "checkpoints/.best.pt.0a1b2c3d.incomplete",
        ".metrics.jsonl.0a1b2c3d.incomplete",
    ):
        (checkpoints.directory.parent / path).write_text("half")
    checkpoints.prepare()
    assert names(checkpoints) == ["epoch-0001-step-000000.pt"]
    assert os.listdir(checkpoints.directory.parent) == ["checkpoints"]


def test_where_all_are_damaged_the_run_does_not_begin_anew_by_itself(save, resumed):
    for epoch in (1, 2):
        save(epoch, best=True).write_text("damaged")
    message = r"epoch-0002-step-000000.pt: damaged \(.*\), and no other checkpoint is left. .*--restart$"
    with pytest.raises(TrainingError, match=message):
        resumed()


def test_damaged_checkpoints_are_replaced(save, resumed):
    save(4)
    for epoch in (5, 6):
        save(epoch).write_text("damaged")
    assert resumed() == (4, 0)
    for epoch in (5, 6):
        save(epoch)
    assert resumed() == (6, 0)


def test_two_runs_in_one_directory_are_one_too_many(checkpoints):
    checkpoints.prepare()  # the same run, once more
    half = checkpoints.directory / ".best.pt.0a1b2c3d.incomplete"
    half.write_text("the first run is writing this")
    with pytest.raises(TrainingError, match=f"^{checkpoints.directory}: another run is writing there. Wait until"):
        Checkpoints(checkpoints.directory, checkpoints.world).prepare(restart=True)
    assert half.exists()


def test_the_directory_is_free_again_when_the_run_is_gone_or_where_no_locks_are(tmp_path, alone, monkeypatch):
    for _ in range(2):
        Checkpoints(tmp_path / "run", alone).prepare()
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))))
    Checkpoints(tmp_path / "run", alone).prepare()


def test_a_full_disk_leaves_the_checkpoints_as_they_were(checkpoints, save, resumed, limit_files):
    save(1, best=True)
    before = names(checkpoints)
    with limit_files(4096), pytest.raises(
        TrainingError, match="best.pt: cannot be written .File too large.. The files"
    ):
        save(2, best=True)
    assert names(checkpoints) == before
    assert resumed() == (1, 0) and best_epoch(checkpoints) == 1


class Malice:
    """Makes whoever unpickles it run a command."""

    def __init__(self, witness):
        self.witness = witness

    def __reduce__(self):
        return (Path.touch, (self.witness,))


def cut(share):
    """Leave a share of a file."""
    return lambda path: os.truncate(path, int(share * path.stat().st_size))


@pytest.mark.parametrize("damage", [cut(0), cut(0.001), cut(0.5), cut(0.999)])
def test_a_damaged_file_is_left_for_the_one_before(save, resumed, capsys, damage):
    save(1)
    path = save(2)
    damage(path)
    assert resumed() == (1, 0)
    assert re.fullmatch(rf"{path}: damaged \(.+\); trying the checkpoint before\n", capsys.readouterr().out)


def test_a_bit_that_is_flipped_anywhere_never_changes_a_result(save, resumed, alone, checkpoints, draw):
    save(1)
    path = save(2)
    good = path.read_bytes()
    expected = small_run(alone).network.state_dict()
    for _ in range(40):  # some bits, such as those of a date, are never read
        path.write_bytes(good)
        flip_bit(path, draw.randrange(len(good)))
        run = small_run(alone)
        run.resume(checkpoints)
        assert run.position.epoch in (1, 2)
        for name, weight in run.network.state_dict().items():
            assert torch.equal(weight, expected[name])


def test_code_in_a_file_is_not_run(save, resumed, tmp_path):
    witness = tmp_path / "code was run"
    torch.save({"epoch": Malice(witness)}, save(1))
    with pytest.raises(TrainingError, match="step-000000.pt: torch .* cannot read it, and nothing in it was executed"):
        resumed()
    assert not witness.exists()


def test_a_program_of_torchscript_counts_as_damaged_where_torch_would_run_it(save, resumed, monkeypatch):
    monkeypatch.setattr("torch.__version__", torch.torch_version.TorchVersion("2.5.1"))
    torch.jit.save(torch.jit.trace(nn.Linear(3, 2), torch.ones(1, 3)), str(save(1)))
    with pytest.raises(TrainingError, match="damaged .it is a program, and nothing in it was executed"):
        resumed()


def test_a_checkpoint_that_cannot_be_read_is_not_taken_for_damaged(save, resumed, monkeypatch):
    path = save(1)
    monkeypatch.setattr("zipfile.ZipFile", Mock(side_effect=OSError(errno.EIO, "I/O error")))
    with pytest.raises(TrainingError, match=rf"^{path}: cannot be read \(I/O error\)\. Nothing"):
        resumed()
    assert path.exists()


def test_a_saved_model_replaces_the_old_one_and_readers_see_one_of_them_whole(tmp_path):
    path = tmp_path / "model.pt"
    path.write_text("old")
    with path.open() as reader:
        save_model(STATE, path)
        assert reader.read() == "old"
    assert torch.equal(torch.load(path, weights_only=True)["weight"], STATE["weight"])
    assert os.listdir(tmp_path) == ["model.pt"]


def test_a_mapped_file_is_not_needed_after_a_resume(checkpoints, alone):
    """To read a mapped file that was cut ends a process with SIGBUS."""
    run = small_run(alone, extra={"copy": nn.Linear(2, 2), "generator": torch.Generator()})
    path = run.save(checkpoints)
    again = small_run(alone, extra={"copy": nn.Linear(2, 2), "generator": torch.Generator()})
    again.resume(checkpoints)
    assert path not in Path("/proc/self/maps").read_text()
    os.truncate(path, 0)
    take_steps(again, 1)
