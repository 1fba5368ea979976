"""The doctor's checks of caches and home directory."""

import os

import pytest
from pytorch_doctor import FAIL, OK, WARN
from pytorch_doctor.checks import files
from pytorch_doctor.context import Context


def test_a_directory_for_caches_is_fine_an_old_lock_a_warning_and_none_at_all_a_failure(tmp_path):
    here = Context({"TMPDIR": str(tmp_path), "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")})
    assert files.check_caches(here).verdict == OK
    assert list(tmp_path.iterdir()) == []
    lock = tmp_path / "extensions" / "mine" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (0, 0))
    found = files.check_caches(here)
    assert found.verdict == WARN and f"{lock}: an old lock" in found.finding and f"rm {lock}" in found.remedy
    found = files.check_caches(Context({"TMPDIR": str(tmp_path / "absent")}, root=str(tmp_path / "nowhere")))
    assert found.verdict == FAIL and "TMPDIR" in found.remedy


def test_a_home_directory_with_room_is_fine_and_one_that_is_gone_a_warning(tmp_path):
    assert files.check_home(Context({"HOME": str(tmp_path)})).verdict == OK
    assert files.check_home(Context({"HOME": str(tmp_path / "absent")})).verdict == WARN


@pytest.mark.parametrize(("number", "verdict"), [(28, FAIL), (122, FAIL), (30, WARN)])
def test_a_full_disk_fails_whatever_else_is_wrong_and_a_read_only_home_does_not(tmp_path, monkeypatch, number, verdict):
    def fill(_):
        raise OSError(number, os.strerror(number))

    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(os, "fsync", fill)
    found = files.check_home(Context({"HOME": str(tmp_path)}))
    assert (found.verdict, found.finding) == (verdict, f"{tmp_path}: {os.strerror(number)}")
    found = files.check_caches(Context({"TMPDIR": str(tmp_path / "absent")}, root=str(tmp_path)))
    assert (found.verdict, found.finding) == (FAIL, f"{tmp_path / 'tmp'}: {os.strerror(number)}")


def test_a_user_whom_the_node_does_not_know_is_the_nodes_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    found = files.check_home(Context({"HOME": str(tmp_path)}))
    assert (found.verdict, found.finding) == (WARN, "this node does not know user 54321")
    assert "getent passwd" in found.remedy
    assert files.check_home(Context({"HOME": str(tmp_path), "APPTAINER_CONTAINER": "x.sif"})).verdict == OK
