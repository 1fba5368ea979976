"""training/checkpoint.py: which files there are, which are kept, one run at a time, and no damage goes unnoticed."""

import errno
import io
import os
import pickle
import re
import stat
import zipfile
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from training import TrainingError
from training.checkpoint import Checkpoints, make_directory, read, save_model
from training.sharded import ShardedCheckpoints

STATE = {"weight": torch.arange(6.0).view(2, 3)}


def test_a_directory_is_made_with_its_parents_and_one_without_room_for_files_is_an_error(tmp_path, monkeypatch):
    for path in (tmp_path / "runs" / "first", tmp_path):
        make_directory(path)
        assert os.listdir(path) == (["runs"] if path == tmp_path else [])

    def read_only(**_arguments):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("tempfile.TemporaryFile", read_only)
    with pytest.raises(TrainingError, match="Read-only file system.*bound"):
        make_directory(tmp_path)


def names(checkpoints):
    return sorted(os.listdir(checkpoints.directory))


def save(checkpoints, state, epoch, step=0, *, best=False):
    path = checkpoints.directory / f"epoch-{epoch:04}-step-{step:06}.pt"
    checkpoints.write(path, state, is_best=best)
    return path


def latest(checkpoints):
    return checkpoints.newest(lambda path: {**read(path), "file": str(path)})


def best(checkpoints):
    return torch.load(checkpoints.directory / "best.pt", weights_only=True)


def test_the_last_by_their_numbers_and_the_best_are_kept(checkpoints):
    for epoch, step in ((2, 0), (3, 0), (9999, 0), (9999, 1_000_000), (10_000, 0)):
        save(checkpoints, {"at": (epoch, step)}, epoch, step, best=epoch == 2)
        assert latest(checkpoints)["at"] == (epoch, step)
    kept = ["epoch-9999-step-000000.pt", "epoch-9999-step-1000000.pt", "epoch-10000-step-000000.pt"]
    assert [path.name for path in checkpoints.paths()] == kept
    assert names(checkpoints) == sorted(["best.pt", *kept])
    assert best(checkpoints)["at"] == (2, 0)


@pytest.mark.parametrize(
    ("kind", "own"), [(Checkpoints, "epoch-0001-step-000000.pt"), (ShardedCheckpoints, "step-00000007")]
)
def test_files_that_are_not_checkpoints_are_left_alone(tmp_path, alone, kind, own):
    others = ["notes.txt", ".hidden", "epoch-3.pt", f"{own}.bak", ".notes.txt.0a1b2c3d", ".step-mine", "step-7"]
    checkpoints = kind(tmp_path / "run" / "checkpoints", alone)
    checkpoints.prepare()
    for name in others:
        (checkpoints.directory / name).write_text("mine")
        (checkpoints.directory.parent / name).write_text("mine")
    (checkpoints.directory / own).touch()
    checkpoints.prepare(restart=True)
    assert names(checkpoints) == sorted(others)
    assert sorted(os.listdir(checkpoints.directory.parent)) == sorted([*others, "checkpoints"])


def test_what_a_killed_run_left_half_written_is_cleared_away(checkpoints):
    save(checkpoints, STATE, 1)
    for path in (
        "checkpoints/.epoch-0002-step-000000.pt.0a1b2c3d.incomplete",
        "checkpoints/.best.pt.0a1b2c3d.incomplete",
        ".mnist_ddp.pt.0a1b2c3d.incomplete",
        ".metrics.jsonl.0a1b2c3d.incomplete",
        ".curves.png.0a1b2c3d.incomplete",
    ):
        (checkpoints.directory.parent / path).write_text("half")
    checkpoints.prepare()
    assert names(checkpoints) == ["epoch-0001-step-000000.pt"]
    assert os.listdir(checkpoints.directory.parent) == ["checkpoints"]


def test_where_all_are_damaged_the_run_does_not_begin_anew_by_itself(checkpoints):
    for epoch in (1, 2):
        save(checkpoints, STATE, epoch, best=True).write_text("damaged")
    with pytest.raises(
        TrainingError, match="epoch-0002-step-000000.pt: damaged .*, and no other checkpoint is left. .*--restart$"
    ):
        latest(checkpoints)


def test_damaged_checkpoints_are_replaced_and_not_kept_in_place_of_a_good_one(checkpoints):
    save(checkpoints, STATE, 4)
    for epoch in (5, 6):
        save(checkpoints, STATE, epoch).write_text(f"damaged {epoch}")
    assert latest(checkpoints)["file"].endswith("epoch-0004-step-000000.pt")
    checkpoints.keep = 2
    for epoch, kept in ((5, "456"), (7, "57")):  # the one after 6 epochs goes when a later one is complete
        path = save(checkpoints, STATE, epoch)
        assert latest(checkpoints)["file"] == str(path)
        assert "".join(path.name[9] for path in checkpoints.paths()) == kept


def test_two_runs_in_one_directory_are_one_too_many(checkpoints):
    checkpoints.prepare()  # the same run, once more
    half = checkpoints.directory / ".best.pt.0a1b2c3d.incomplete"
    half.write_text("the first run is writing this")
    with pytest.raises(TrainingError, match=f"^{checkpoints.directory}: another run is writing there. Wait until"):
        Checkpoints(checkpoints.directory, checkpoints.world).prepare(restart=True)
    assert half.exists()


def test_the_directory_is_free_again_when_the_run_is_gone_or_where_no_locks_are(tmp_path, alone, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    for _ in range(2):
        Checkpoints(tmp_path / "run", alone).prepare()
    monkeypatch.setattr("fcntl.flock", no_locks)
    Checkpoints(tmp_path / "run", alone).prepare()


def test_a_file_that_may_not_grow_any_more_leaves_the_checkpoints_as_they_were(checkpoints, limit_files):
    save(checkpoints, {"epoch": 1}, 1, best=True)
    before = names(checkpoints)
    message = "best.pt: cannot be written .File too large.. The files before it"
    with limit_files(4096), pytest.raises(TrainingError, match=message):
        save(checkpoints, {"weights": torch.ones(2000)}, 2, best=True)
    assert names(checkpoints) == before
    assert latest(checkpoints)["epoch"] == best(checkpoints)["epoch"] == 1


class Malice:
    """Makes whoever unpickles it run a command."""

    def __init__(self, witness):
        self.witness = witness

    def __reduce__(self):
        return (Path.touch, (self.witness,))


def cut(share):
    """Leave a share of a file."""
    return lambda path, _: os.truncate(path, int(share * path.stat().st_size))


def pickled(path, malice):
    path.write_bytes(pickle.dumps({"epoch": malice}))


def saved(path, malice, **options):
    torch.save({"epoch": malice}, path, **options)


def saved_as_before_1_6(path, malice):
    saved(path, malice, _use_new_zipfile_serialization=False)


def traced(path, _):
    """Write a program of TorchScript, which torch before 2.6 runs although it is to load weights only."""
    torch.jit.save(torch.jit.trace(nn.Linear(3, 2), torch.ones(1, 3)), str(path))


def compressed(path, _):
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))


@pytest.mark.parametrize(
    "damage", [cut(0), cut(0.001), cut(0.5), cut(0.999), pickled, saved, saved_as_before_1_6, traced, compressed]
)
def test_what_is_no_checkpoint_is_left_for_the_one_before_and_its_code_is_not_run(
    checkpoints, tmp_path, capsys, damage
):
    witness = tmp_path / "code was run"
    pickle.loads(pickle.dumps(Malice(witness)))  # noqa: S301 (ours)
    assert witness.exists(), "the malice works"
    witness.unlink()
    save(checkpoints, {"epoch": 1}, 1)
    path = save(checkpoints, STATE, 2)
    damage(path, Malice(witness))
    assert latest(checkpoints)["epoch"] == 1
    reason = "its parts are compressed" if damage is compressed else ".+"
    assert re.fullmatch(rf"{path}: damaged \({reason}\); trying the checkpoint before\n", capsys.readouterr().out)
    assert not witness.exists()


NO_MEMORY = "0.pt: cannot be read .not enough memory.. Nothing was changed: start again when it can be read$"


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        ("training.checkpoint.read_file", OSError(errno.EIO, "I/O error"), r"0.pt: cannot be read \(I/O error\). No"),
        ("training.checkpoint.read_file", MemoryError(), NO_MEMORY),
        ("torch.load", MemoryError(), NO_MEMORY),
        ("torch.load", RuntimeError("can't allocate memory: you tried ..."), NO_MEMORY),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_not_taken_for_damaged(checkpoints, monkeypatch, function, error, message):
    path = [save(checkpoints, STATE, epoch) for epoch in (1, 2)][-1]
    before = names(checkpoints)
    monkeypatch.setattr(function, Mock(side_effect=error))
    with pytest.raises(TrainingError, match=f"^{path.parent}/epoch-0002-step-00000{message}"):
        latest(checkpoints)
    assert names(checkpoints) == before


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(checkpoints, make):
    path = checkpoints.directory / "epoch-0001-step-000000.pt"
    make(path)
    with pytest.raises(TrainingError, match=f"^{path}: an? .*, not a regular file. Remove it"):
        latest(checkpoints)


def test_a_saved_model_replaces_the_old_one_and_needs_no_trust_in_pickle(tmp_path):
    (tmp_path / "model.pt").write_text("old")
    umask = os.umask(0o022)
    try:
        with (tmp_path / "model.pt").open() as reader:
            save_model(STATE, tmp_path / "model.pt")
            assert reader.read() == "old", "a reader of the old one reads it to its end"
    finally:
        os.umask(umask)
    loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    assert loaded.keys() == STATE.keys() and torch.equal(loaded["weight"], STATE["weight"])
    assert os.listdir(tmp_path) == ["model.pt"]
    assert (tmp_path / "model.pt").stat().st_mode & 0o777 == 0o644


def test_the_model_is_on_the_disk_before_it_takes_the_place_of_the_old_one(tmp_path, monkeypatch):
    (tmp_path / "model.pt").write_text("old")
    seen_at_sync = []
    monkeypatch.setattr(os, "fsync", lambda _descriptor: seen_at_sync.append((tmp_path / "model.pt").read_bytes()))
    save_model(STATE, tmp_path / "model.pt")
    # the file, and then the directory with its new name
    assert [content == b"old" for content in seen_at_sync] == [True, False]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_file_system_that_brings_no_directory_to_the_disk_is_no_hindrance(tmp_path, monkeypatch, number):
    def fsync(descriptor, real=os.fsync):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with nullcontext() if number == errno.EINVAL else pytest.raises(TrainingError, match="cannot be written"):
        save_model(STATE, tmp_path / "model.pt")
    assert (tmp_path / "model.pt").exists()
