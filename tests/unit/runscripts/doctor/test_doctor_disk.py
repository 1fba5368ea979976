"""The doctor's check of the directories that a training writes to."""

import os

import pytest
from pytorch_doctor import FAIL, OK, WARN
from pytorch_doctor.checks.disk import check_disk
from pytorch_doctor.context import Context


def test_directories_with_room_are_fine_and_stay_empty(tmp_path):
    assert check_disk(Context({"TMPDIR": str(tmp_path), "HOME": str(tmp_path)})).verdict == OK
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("variable", "verdict"), [("TMPDIR", FAIL), ("HOME", WARN)])
@pytest.mark.parametrize("number", [0, 28, 122])
def test_a_directory_that_is_absent_or_full_is_named(tmp_path, monkeypatch, variable, verdict, number):
    (tmp_path / "full").mkdir()
    bad = tmp_path / ("full" if number else "absent")
    sync = os.fsync

    def fill(file):
        if number and os.readlink(f"/proc/self/fd/{file}").startswith(str(bad)):
            raise OSError(number, os.strerror(number))
        sync(file)

    monkeypatch.setattr(os, "fsync", fill)
    found = check_disk(Context({"TMPDIR": str(tmp_path), "HOME": str(tmp_path), variable: str(bad)}))
    assert (found.verdict, found.finding) == (verdict, f"{bad}: {os.strerror(number or 2)}")
