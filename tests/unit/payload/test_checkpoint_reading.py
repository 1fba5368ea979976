"""training/checkpoint.py: no damage goes unnoticed, and no code is run."""

import errno
import io
import os
import pickle
import re
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from training import TrainingError

STATE = {"weight": torch.arange(6.0).view(2, 3)}


def test_a_checkpoint_that_lacks_its_end_is_left_for_the_one_before(checkpoints, capsys):
    checkpoints.save({"epoch": 1}, epoch=1, step=0)
    path = checkpoints.save({"epoch": 2}, epoch=2, step=0)
    content = path.read_bytes()
    for length in (0, 1, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        assert checkpoints.latest()["epoch"] == 1
        line = capsys.readouterr().out
        assert re.fullmatch(rf"{path}: damaged \(.+\); trying the checkpoint before\n", line)


class Malice:
    """Makes whoever unpickles it run a command."""

    def __init__(self, witness):
        self.witness = witness

    def __reduce__(self):
        return (Path.touch, (self.witness,))


def test_a_malicious_checkpoint_is_refused_and_its_code_is_not_run(checkpoints, tmp_path, capsys):
    witness = tmp_path / "code was run"
    pickle.loads(pickle.dumps(Malice(witness)))  # noqa: S301 (ours)
    assert witness.exists(), "the malice works"
    witness.unlink()

    checkpoints.save(STATE, epoch=1, step=0)
    path = checkpoints.directory / "epoch-0002-step-000000.pt"
    old = {"_use_new_zipfile_serialization": False}
    for write in (torch.save, lambda state, path: torch.save(state, path, **old), pickled, traced):
        write({"epoch": Malice(witness)}, path)
        assert checkpoints.latest()["file"].endswith("epoch-0001-step-000000.pt")
        assert "epoch-0002-step-000000.pt: damaged (" in capsys.readouterr().out
    assert not witness.exists()


def pickled(state, path):
    path.write_bytes(pickle.dumps(state))


def traced(_, path):
    """Write a program of TorchScript, which torch before 2.6 runs although it is to load weights only."""
    torch.jit.save(torch.jit.trace(nn.Linear(3, 2), torch.ones(1, 3)), str(path))


def test_a_checkpoint_that_cannot_be_read_is_not_taken_for_damaged(checkpoints, monkeypatch):
    for epoch in (1, 2):
        checkpoints.save(STATE, epoch=epoch, step=0)
    before = sorted(os.listdir(checkpoints.directory))

    def fail(*_):
        raise error

    monkeypatch.setattr("training.checkpoint.read_file", fail)
    error = OSError(errno.EIO, os.strerror(errno.EIO))
    with pytest.raises(TrainingError, match=r"epoch-0002-step-000000.pt: cannot be read \(Input/output error\). No"):
        checkpoints.latest()
    memory = "000.pt: not enough memory to read it. Nothing was changed: request more memory$"
    error = MemoryError()
    with pytest.raises(TrainingError, match=memory):
        checkpoints.latest()
    monkeypatch.undo()
    monkeypatch.setattr(torch, "load", lambda *_, **__: fail(None))
    for error in (MemoryError(), RuntimeError("can't allocate memory: you tried ...")):  # noqa: B007 (`fail` raises it)
        with pytest.raises(TrainingError, match=memory):
            checkpoints.latest()
    assert sorted(os.listdir(checkpoints.directory)) == before


def repacked(path, change, compression=zipfile.ZIP_STORED):
    """Pack a checkpoint anew, with ``change`` of its pickle."""
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as old, zipfile.ZipFile(path, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, change(old.read(name)) if name.endswith("data.pkl") else old.read(name))


def test_a_compressed_checkpoint_is_damaged_before_it_is_expanded(checkpoints, monkeypatch, capsys):
    checkpoints.save({"epoch": 1}, epoch=1, step=0)
    path = checkpoints.save(STATE, epoch=2, step=0)
    repacked(path, lambda pickled: pickled, zipfile.ZIP_DEFLATED)
    assert checkpoints.latest()["epoch"] == 1
    assert "damaged (its parts are compressed); trying" in capsys.readouterr().out


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(checkpoints, make):
    path = checkpoints.directory / "epoch-0001-step-000000.pt"
    make(path)
    with pytest.raises(TrainingError, match=f"^{path}: an? .*, not a regular file. Remove it"):
        checkpoints.latest()
