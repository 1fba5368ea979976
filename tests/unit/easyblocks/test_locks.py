"""Holders of locks: whether they are certainly dead, and cleaning up after them."""

import fcntl
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from easybuild.tools.build_log import EasyBuildError

from pytorch_install.engine import locks


@pytest.fixture
def lock(prefix, tmp_path):
    """A lock, as EasyBuild makes it."""
    path = tmp_path / "x.lock"
    path.mkdir()
    return path


@pytest.fixture
def held(lock, monkeypatch):
    """A lock that this process holds."""
    monkeypatch.setenv(locks.MARK, "")
    locks.hold_lock(str(lock))
    return lock


@pytest.fixture
def abandoned(held):
    """A lock whose holder is dead; processes that this one starts are marked as the holder's."""
    process = subprocess.Popen(["sleep", "600"])
    holder = {**locks.describe(os.getpid()), "pid": process.pid, "started": locks.start_time(process.pid)}
    process.kill()
    process.wait()
    (held / "holder.json").write_text(locks.json.dumps(holder))
    os.environ[locks.MARK] = locks.mark(holder)
    return held


def test_a_live_holder_is_named_with_its_process_its_host_and_the_age_of_the_lock(held, monkeypatch):
    made = held.stat().st_mtime
    monkeypatch.setattr(time, "time", lambda: made + 3700)
    named = locks.name_holder(locks.read_holder(str(held)), str(held))
    assert named.startswith(f"process {os.getpid()} of ")
    assert named.endswith(f" on {socket.gethostname()}, for 1 hour 1 min 40 secs")


def test_a_live_holder_is_not_dead_and_its_lock_stays(held):
    assert not locks.is_dead(locks.read_holder(str(held)))
    message = rf"PyTorch/1 is being installed by process {os.getpid()} .* rm -r '.*x.lock"
    with pytest.raises(EasyBuildError, match=message):
        locks.await_lock(str(held), "PyTorch/1")
    assert held.exists()


def test_a_lock_of_a_dead_holder_is_removed_with_a_message(abandoned, capsys):
    locks.await_lock(str(abandoned), "PyTorch/1")
    assert not abandoned.exists()
    assert "which was killed" in capsys.readouterr().out


@pytest.mark.parametrize("change", [{"boot": "another"}, {"uid": 4712}])
def test_a_holder_on_another_host_or_of_another_user_never_counts_as_dead(abandoned, monkeypatch, change):
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    holder = {**locks.read_holder(str(abandoned)), "uid": 4711}
    assert locks.is_dead(holder)
    assert not locks.is_dead({**holder, **change})


def test_a_process_that_got_the_id_of_a_dead_holder_is_not_the_holder(held):
    holder = locks.read_holder(str(held))
    assert locks.is_dead({**holder, "started": holder["started"] - 1})


def test_a_zombie_counts_as_dead():
    process = subprocess.Popen(["true"])
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    assert locks.start_time(process.pid) is None
    process.wait()


def test_only_processes_that_a_dead_holder_started_are_ended(abandoned, capsys):
    orphan = subprocess.Popen(["sleep", "600"])
    other = subprocess.Popen(["sleep", "600"], env={**os.environ, locks.MARK: os.environ[locks.MARK] + "0"})
    try:
        locks.await_lock(str(abandoned), "PyTorch/1")
        assert orphan.wait() == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (orphan, other):
            process.kill()
            process.wait()
    assert "which was killed, and 1 processes that it had started" in capsys.readouterr().out


def test_a_lock_that_another_process_has_taken_over_is_kept(abandoned):
    dead = locks.read_holder(str(abandoned))
    locks.hold_lock(str(abandoned))
    locks.remove_stale_lock(str(abandoned), dead)
    assert abandoned.exists()


def test_two_processes_do_not_remove_a_stale_lock_at_the_same_time(abandoned, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    dead = locks.read_holder(str(abandoned))
    with (abandoned / "removal").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not locks.remove_stale_lock(str(abandoned), dead)
    assert abandoned.exists()


def test_a_removal_by_another_process_that_hangs_is_one_error(abandoned, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(locks, "REMOVAL", 0.1)
    with (abandoned / "removal").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(EasyBuildError, match="another process has been removing for .* rm -r '.*x.lock"):
            locks.await_lock(str(abandoned), "PyTorch/1")
    assert abandoned.exists()


def test_abstract_sockets_which_any_user_can_bind_do_not_block_the_removal(abandoned):
    name = "\0pytorch-stale-lock " + locks.mark(locks.read_holder(str(abandoned)))
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(name)
        locks.await_lock(str(abandoned), "PyTorch/1")
    assert not abandoned.exists()
    assert list(abandoned.parent.glob("x.lock*")) == []


def test_other_users_cannot_open_the_file_that_guards_the_removal(abandoned, monkeypatch):
    modes = []
    monkeypatch.setattr(locks, "end_orphans", lambda _: modes.append((abandoned / "removal").stat().st_mode & 0o777))
    locks.await_lock(str(abandoned), "PyTorch/1")
    assert modes == [0o600]


def test_a_stale_lock_without_write_permission_is_one_error(abandoned, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(EasyBuildError, match="left a lock that cannot be removed .*Permission denied.* rm -r"):
        locks.await_lock(str(abandoned), "PyTorch/1")


@pytest.mark.parametrize("text", [None, "", "{"])
def test_a_lock_that_does_not_identify_its_holder_is_kept_and_explained(lock, text):
    if text is not None:
        (lock / "holder.json").write_text(text)
    with pytest.raises(EasyBuildError, match="an unidentified `eb`, for .* rm -r"):
        locks.await_lock(str(lock), "PyTorch/1")
    assert lock.exists()


def test_without_a_lock_it_returns_at_once(prefix, tmp_path):
    locks.await_lock(str(tmp_path / "none.lock"), "PyTorch/1")
