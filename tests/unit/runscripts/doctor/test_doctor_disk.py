"""The doctor's check of the directories that a training writes to."""

import errno
import os
from pathlib import Path

import pytest
from pytorch_doctor import FAIL, OK, WARN
from pytorch_doctor.checks.disk import check_disk
from pytorch_doctor.context import Context


def test_directories_with_room_are_fine_and_stay_empty(tmp_path):
    assert check_disk(Context({"TMPDIR": str(tmp_path), "HOME": str(tmp_path)})).verdict == OK
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("variable", "verdict"), [("TMPDIR", FAIL), ("HOME", WARN)])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_directory_that_is_absent_or_full_is_named(tmp_path, monkeypatch, variable, verdict, number):
    places = {"TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    absent = check_disk(Context({**places, variable: "/absent"}))
    assert (absent.verdict, absent.finding) == (verdict, "/absent: No such file or directory")
    full = tmp_path / "full"
    full.mkdir()

    def fill(file):
        if Path(f"/proc/self/fd/{file}").readlink().is_relative_to(full):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fill)
    found = check_disk(Context({**places, variable: str(full)}))
    assert (found.verdict, found.finding) == (verdict, f"{full}: {os.strerror(number)}")
