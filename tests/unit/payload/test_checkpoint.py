"""training/checkpoint.py: the old file or the new one, never a part."""

import errno
import os

import pytest
import torch
from training import TrainingError
from training.checkpoint import make_directory, save_model

STATE = {"weight": torch.arange(6.0).view(2, 3)}


def full_disk(_descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_saved_model_can_be_loaded_without_trusting_pickle(tmp_path):
    save_model(STATE, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    assert loaded.keys() == STATE.keys()
    assert torch.equal(loaded["weight"], STATE["weight"])


def test_a_saved_model_replaces_the_old_one_and_leaves_nothing_else(tmp_path):
    (tmp_path / "model.pt").write_text("old")
    save_model(STATE, tmp_path / "model.pt")
    assert torch.load(tmp_path / "model.pt", weights_only=True)
    assert os.listdir(tmp_path) == ["model.pt"]


def test_a_full_disk_leaves_the_old_model_and_no_temporary_file(tmp_path, monkeypatch):
    (tmp_path / "model.pt").write_text("old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(TrainingError, match="model.pt: cannot be written .No space left on device.; free some space"):
        save_model(STATE, tmp_path / "model.pt")
    assert (tmp_path / "model.pt").read_text() == "old"
    assert os.listdir(tmp_path) == ["model.pt"]


def test_a_directory_in_the_place_of_the_model_is_an_error_that_leaves_no_temporary_file(tmp_path):
    (tmp_path / "model.pt").mkdir()
    with pytest.raises(TrainingError, match="Is a directory"):
        save_model(STATE, tmp_path / "model.pt")
    assert os.listdir(tmp_path) == ["model.pt"]


def test_the_model_is_on_the_disk_before_it_takes_the_place_of_the_old_one(tmp_path, monkeypatch):
    (tmp_path / "model.pt").write_text("old")
    seen_at_sync = []
    monkeypatch.setattr(os, "fsync", lambda _descriptor: seen_at_sync.append((tmp_path / "model.pt").read_text()))
    save_model(STATE, tmp_path / "model.pt")
    assert seen_at_sync == ["old"]


def test_whoever_is_reading_the_old_model_reads_it_to_its_end(tmp_path):
    (tmp_path / "model.pt").write_text("old")
    with (tmp_path / "model.pt").open() as reader:
        save_model(STATE, tmp_path / "model.pt")
        assert reader.read() == "old"


def test_others_may_read_the_model_as_far_as_the_umask_lets_them(tmp_path):
    umask = os.umask(0o022)
    try:
        save_model(STATE, tmp_path / "model.pt")
    finally:
        os.umask(umask)
    assert (tmp_path / "model.pt").stat().st_mode & 0o777 == 0o644


def test_a_directory_is_made_with_its_parents_and_stays_empty(tmp_path):
    make_directory(tmp_path / "runs" / "first")
    assert os.listdir(tmp_path / "runs" / "first") == []


def test_a_directory_that_is_there_already_is_taken(tmp_path):
    (tmp_path / "model.pt").write_text("old")
    make_directory(tmp_path)
    assert os.listdir(tmp_path) == ["model.pt"]


def test_a_file_in_the_place_of_the_directory_is_an_error(tmp_path):
    (tmp_path / "model").write_text("a file")
    with pytest.raises(TrainingError, match="model: cannot be written .File exists.; name another directory"):
        make_directory(tmp_path / "model")


def test_a_directory_without_room_for_files_is_an_error(tmp_path, monkeypatch):
    def read_only(**_arguments):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("tempfile.TemporaryFile", read_only)
    with pytest.raises(TrainingError, match="Read-only file system.*bound"):
        make_directory(tmp_path)
