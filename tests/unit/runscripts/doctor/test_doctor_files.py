"""The doctor's checks of caches, home directory and data set."""

import hashlib
import os

import pytest
from pytorch_doctor import FAIL, NOT_APPLICABLE, OK, WARN
from pytorch_doctor.checks import caches, dataset, home
from pytorch_doctor.surroundings import Surroundings

# Caches, home, data set


def test_a_private_directory_is_fine_and_nothing_is_written(tmp_path):
    assert caches.check(Surroundings({"TMPDIR": str(tmp_path)})).verdict == OK
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_open_to_others_is_a_warning(tmp_path):
    top = tmp_path / f"pytorch-{os.geteuid()}"
    top.mkdir()
    top.chmod(0o777)
    found = caches.check(Surroundings({"TMPDIR": str(tmp_path)}))
    assert found.verdict == WARN
    assert f"{top} is not private" in found.finding
    top.rmdir()
    top.symlink_to(tmp_path)
    assert caches.check(Surroundings({"TMPDIR": str(tmp_path)})).verdict == WARN


def test_no_directory_at_all_is_a_failure(tmp_path):
    found = caches.check(Surroundings({"TMPDIR": str(tmp_path / "absent")}, root=str(tmp_path / "nowhere")))
    assert found.verdict == FAIL
    assert "TMPDIR" in found.remedy


def test_a_home_directory_with_room_is_fine_and_one_that_is_gone_a_warning(tmp_path):
    env = {"HOME": str(tmp_path), "PYTHONUSERBASE": str(tmp_path / "not" / "yet")}
    assert home.check(Surroundings(env)).verdict == OK
    assert home.check(Surroundings({"HOME": str(tmp_path / "absent")})).verdict == WARN


@pytest.mark.parametrize(("number", "verdict"), [(28, FAIL), (122, FAIL), (30, WARN)])
def test_a_full_home_directory_fails_and_a_read_only_one_does_not(tmp_path, monkeypatch, number, verdict):
    monkeypatch.setattr(home, "why_not_writable", lambda _: os.strerror(number))
    assert home.check(Surroundings({"HOME": str(tmp_path)})).verdict == verdict


@pytest.fixture
def four_files(tmp_path, monkeypatch):
    """A data set of four small files, whose checksums the check expects."""
    contents = {name: name.encode() for name in dataset.FILES}
    monkeypatch.setattr(dataset, "FILES", {name: hashlib.sha256(text).hexdigest() for name, text in contents.items()})
    for name, text in contents.items():
        (tmp_path / name).write_bytes(text)
    return tmp_path


def test_a_data_set_is_checked_where_it_is(four_files):
    assert dataset.check(Surroundings({})).verdict == NOT_APPLICABLE
    assert dataset.check(Surroundings({"MNIST_ROOT": str(four_files)})).verdict == OK


def test_a_missing_a_changed_and_a_cut_file_are_failures(four_files):
    here = Surroundings({"MNIST_ROOT": str(four_files)})
    labels = four_files / "t10k-labels-idx1-ubyte"
    labels.write_bytes(b"other")
    assert "t10k-labels-idx1-ubyte is damaged" in dataset.check(here).finding
    labels.rename(four_files / "t10k-labels-idx1-ubyte.gz")
    found = dataset.check(here)
    assert found.verdict == FAIL
    assert "t10k-labels-idx1-ubyte.gz cannot be read" in found.finding
    (four_files / "t10k-labels-idx1-ubyte.gz").unlink()
    found = dataset.check(here)
    assert "has no t10k-labels-idx1-ubyte" in found.finding
    assert "eb --rebuild MNIST-1998.eb" in found.remedy
