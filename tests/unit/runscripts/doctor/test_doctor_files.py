"""The doctor's checks of caches and home directory."""

import os

import pytest
from pytorch_doctor import FAIL, OK, WARN
from pytorch_doctor.checks import files
from pytorch_doctor.context import Context


def test_a_private_directory_is_fine_and_nothing_is_written(tmp_path):
    assert files.check_caches(Context({"TMPDIR": str(tmp_path)})).verdict == OK
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_place_of_the_directory_is_a_warning(tmp_path):
    (tmp_path / f"pytorch-{os.geteuid()}").symlink_to(tmp_path)
    found = files.check_caches(Context({"TMPDIR": str(tmp_path)}))
    assert found.verdict == WARN and "is not private" in found.finding


def test_no_directory_at_all_is_a_failure(tmp_path):
    found = files.check_caches(Context({"TMPDIR": str(tmp_path / "absent")}, root=str(tmp_path / "nowhere")))
    assert found.verdict == FAIL
    assert "TMPDIR" in found.remedy


def test_a_home_directory_with_room_is_fine_and_one_that_is_gone_a_warning(tmp_path):
    env = {"HOME": str(tmp_path), "PYTHONUSERBASE": str(tmp_path / "not" / "yet")}
    assert files.check_home(Context(env)).verdict == OK
    assert files.check_home(Context({"HOME": str(tmp_path / "absent")})).verdict == WARN


@pytest.mark.parametrize(("number", "verdict"), [(28, FAIL), (122, FAIL), (30, WARN)])
def test_a_full_home_directory_fails_and_a_read_only_one_does_not(tmp_path, monkeypatch, number, verdict):
    def fill(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fill)
    found = files.check_home(Context({"HOME": str(tmp_path)}))
    assert (found.verdict, found.finding) == (verdict, f"{tmp_path}: {os.strerror(number)}")


def test_a_full_disk_of_the_node_fails_whatever_else_is_wrong(tmp_path, monkeypatch):
    def fill(_):
        raise OSError(28, os.strerror(28))

    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(os, "fsync", fill)
    found = files.check_caches(Context({"TMPDIR": str(tmp_path / "absent")}, root=str(tmp_path)))
    assert (found.verdict, found.finding) == (FAIL, f"{tmp_path / 'tmp'}: {os.strerror(28)}")


def test_a_user_whom_the_node_does_not_know_is_the_nodes_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    found = files.check_home(Context({"HOME": str(tmp_path)}))
    assert (found.verdict, found.finding) == (WARN, "this node does not know user 54321")
    assert "getent passwd" in found.remedy
    assert files.check_home(Context({"HOME": str(tmp_path), "APPTAINER_CONTAINER": "x.sif"})).verdict == OK
