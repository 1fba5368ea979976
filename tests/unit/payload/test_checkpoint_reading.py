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
    checkpoints.save({"epoch": 1}, epoch=1, step=0)
    path = checkpoints.save(STATE, epoch=2, step=0)
    damage(path, Malice(witness))
    assert checkpoints.latest()["epoch"] == 1
    reason = "its parts are compressed" if damage is compressed else ".+"
    assert re.fullmatch(rf"{path}: damaged \({reason}\); trying the checkpoint before\n", capsys.readouterr().out)
    assert not witness.exists()


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


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(checkpoints, make):
    path = checkpoints.directory / "epoch-0001-step-000000.pt"
    make(path)
    with pytest.raises(TrainingError, match=f"^{path}: an? .*, not a regular file. Remove it"):
        checkpoints.latest()
