"""training/checkpoint.py: which checkpoints are there, which are kept, and one run at a time."""

import errno
import os

import pytest
import torch
from training import TrainingError
from training.checkpoint import Checkpoints, make_directory
from training.sharded.checkpoints import ShardedDirectory

STATE = {"weight": torch.arange(6.0).view(2, 3)}


def test_a_directory_is_made_with_its_parents_and_one_without_room_for_files_is_an_error(tmp_path, monkeypatch):
    for path in (tmp_path / "runs" / "first", tmp_path):
        make_directory(path)
        assert os.listdir(path) == (["runs"] if path == tmp_path else [])
    (tmp_path / "model").write_text("a file")
    with pytest.raises(TrainingError, match="model: cannot be written .File exists.. Choose another directory"):
        make_directory(tmp_path / "model")

    def read_only(**_arguments):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("tempfile.TemporaryFile", read_only)
    with pytest.raises(TrainingError, match="Read-only file system.*bound"):
        make_directory(tmp_path)


def names(checkpoints):
    return sorted(os.listdir(checkpoints.directory))


def best(checkpoints):
    return torch.load(checkpoints.directory / "best.pt", weights_only=True)


def test_the_newest_state_is_found_again_with_the_file_that_it_was_in(checkpoints):
    assert checkpoints.latest() is None
    checkpoints.save(STATE, epoch=1, step=0)
    path = checkpoints.save({**STATE, "epoch": 1, "names": ["a", {"b": 0.5}]}, epoch=1, step=120)
    assert path == checkpoints.directory / "epoch-0001-step-000120.pt"
    state = checkpoints.latest()
    assert torch.equal(state.pop("weight"), STATE["weight"])
    assert state == {"epoch": 1, "names": ["a", {"b": 0.5}], "file": str(path)}


def test_the_last_by_their_numbers_and_the_best_are_kept(checkpoints):
    for epoch, step in ((2, 0), (3, 0), (9999, 0), (9999, 1_000_000), (10_000, 0)):
        checkpoints.save({"at": (epoch, step)}, epoch=epoch, step=step, best=epoch == 2)
        assert checkpoints.latest()["at"] == (epoch, step)
    kept = ["epoch-9999-step-000000.pt", "epoch-9999-step-1000000.pt", "epoch-10000-step-000000.pt"]
    assert [path.name for path in checkpoints.paths()] == kept
    assert names(checkpoints) == sorted(["best.pt", *kept])
    assert best(checkpoints)["at"] == (2, 0)


@pytest.mark.parametrize(
    ("kind", "own"), [(Checkpoints, "epoch-0001-step-000000.pt"), (ShardedDirectory, "step-00000007")]
)
def test_files_that_are_not_checkpoints_are_left_alone(tmp_path, kind, own):
    others = ["notes.txt", ".hidden", "epoch-3.pt", f"{own}.bak", ".notes.txt.0a1b2c3d", ".step-mine", "step-7"]
    checkpoints = kind(tmp_path / "run" / "checkpoints")
    checkpoints.prepare()
    for name in others:
        (checkpoints.directory / name).write_text("mine")
        (checkpoints.directory.parent / name).write_text("mine")
    (checkpoints.directory / own).touch()
    checkpoints.prepare(restart=True)
    assert names(checkpoints) == sorted(others)
    assert sorted(os.listdir(checkpoints.directory.parent)) == sorted([*others, "checkpoints"])


def test_what_a_killed_run_left_half_written_is_cleared_away(checkpoints):
    checkpoints.save(STATE, epoch=1, step=0)
    for path in (
        "checkpoints/.epoch-0002-step-000000.pt.0a1b2c3d",
        "checkpoints/.best.pt.0a1b2c3d",
        ".mnist_ddp.pt.0a1b2c3d",
        ".metrics.jsonl.0a1b2c3d",
        ".curves.png.0a1b2c3d",
    ):
        (checkpoints.directory.parent / path).write_text("half")
    checkpoints.prepare()
    assert names(checkpoints) == ["epoch-0001-step-000000.pt"]
    assert os.listdir(checkpoints.directory.parent) == ["checkpoints"]


def test_where_all_are_damaged_the_run_does_not_begin_anew_by_itself(checkpoints):
    for epoch in (1, 2):
        checkpoints.save(STATE, epoch=epoch, step=0, best=True).write_text("damaged")
    with pytest.raises(
        TrainingError, match="epoch-0002-step-000000.pt: damaged .*, and no other checkpoint is left. .*--restart$"
    ):
        checkpoints.latest()


def test_damaged_checkpoints_are_replaced_and_not_kept_in_place_of_a_good_one(checkpoints):
    checkpoints.save(STATE, epoch=4, step=0)
    for epoch in (5, 6):
        checkpoints.save(STATE, epoch=epoch, step=0).write_text(f"damaged {epoch}")
    assert checkpoints.latest()["file"].endswith("epoch-0004-step-000000.pt")
    checkpoints.keep = 2
    for epoch, kept in ((5, "456"), (7, "57")):  # the one after 6 epochs goes when a later one is complete
        path = checkpoints.save(STATE, epoch=epoch, step=0)
        assert checkpoints.latest()["file"] == str(path)
        assert "".join(path.name[9] for path in checkpoints.paths()) == kept


def test_two_runs_in_one_directory_are_one_too_many(checkpoints):
    checkpoints.prepare()  # the same run, once more
    half = checkpoints.directory / ".best.pt.0a1b2c3d"
    half.write_text("the first run is writing this")
    with pytest.raises(TrainingError, match=f"^{checkpoints.directory}: another run is writing there. Wait until"):
        Checkpoints(checkpoints.directory).prepare(restart=True)
    assert half.exists()


def test_the_directory_is_free_again_when_the_run_is_gone_or_where_no_locks_are(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    for _ in range(2):
        Checkpoints(tmp_path / "run").prepare()
    monkeypatch.setattr("fcntl.flock", no_locks)
    Checkpoints(tmp_path / "run").prepare()


def test_a_file_that_may_not_grow_any_more_leaves_the_checkpoints_as_they_were(checkpoints, limit_files):
    checkpoints.save({"epoch": 1}, epoch=1, step=0, best=True)
    before = names(checkpoints)
    message = "best.pt: cannot be written .File too large.. The files before it"
    with limit_files(4096), pytest.raises(TrainingError, match=message):
        checkpoints.save({"weights": torch.ones(2000)}, epoch=2, step=0, best=True)
    assert names(checkpoints) == before
    assert checkpoints.latest()["epoch"] == best(checkpoints)["epoch"] == 1
