"""training/checkpoint.py: the old model or the new one, never a part."""

import errno
import os
import stat
from contextlib import nullcontext

import pytest
import torch
from training import TrainingError
from training.checkpoint import save_model

STATE = {"weight": torch.arange(6.0).view(2, 3)}


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
