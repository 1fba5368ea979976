"""Wheels that a lock names without a hash, as none is published: the first fetch notes it, later ones compare."""

import hashlib
import os
import shutil
import zipfile
from pathlib import Path

import pytest
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import update_build_option

from pytorch_install.sources.directories import make_directory
from pytorch_install.sources.wheels import fetch_wheels

#: Wheels know nothing of modules.
pytestmark = pytest.mark.parametrize("prefix", ["Lua"], indirect=True)

#: Never asked, as pip is told to use no index.
INDEX = "https://wheels.invalid/"


@pytest.fixture
def index(tmp_path, prefix, monkeypatch):
    """A directory that is all that pip finds wheels in."""
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


def wheel(directory, name, content=""):
    """Make a wheel, as a zip archive (PEP 427); return its SHA-256."""
    path = directory / f"{name}-1.0+rocm6.0-cp310-cp310-linux_x86_64.whl"
    info = f"{name}-1.0+rocm6.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0+rocm6.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp310-cp310-linux_x86_64\n")
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_first_fetch_records_missing_hashes_and_later_ones_compare_them(index, tmp_path):
    first, second = wheel(index, "first"), wheel(index, "second")
    lock = tmp_path / "lock.txt"
    lock.write_text(f"# a lock\nfirst==1.0+rocm6.0\nsecond==1.0+rocm6.0 --hash=sha256:{second}\n")
    wheels = tmp_path / "wheels"

    requirements, directory = fetch_wheels(str(lock), [str(wheels)], "3.10", INDEX)
    noted = f"first==1.0+rocm6.0 --hash=sha256:{first}\nsecond==1.0+rocm6.0 --hash=sha256:{second}\n"
    assert (wheels / "lock.txt").read_text() == noted
    assert Path(requirements).read_text() == noted
    assert directory == str(wheels)
    assert sorted(path.name for path in wheels.glob("*.whl")) == sorted(path.name for path in index.glob("*.whl"))

    for path in wheels.glob("first*"):
        path.unlink()
    wheel(index, "first", content="print('another one')\n")
    with pytest.raises(EasyBuildError, match=r"lock.txt: line 2: the wheel of first==1\.0\S+ has the SHA-256 \w{64}"):
        fetch_wheels(str(lock), [str(wheels)], "3.10", INDEX)
    assert (wheels / "lock.txt").read_text() == noted


def test_a_lock_with_all_hashes_needs_no_record(index, tmp_path):
    lock = tmp_path / "lock.txt"
    lock.write_text(f"first==1.0+rocm6.0 --hash=sha256:{wheel(index, 'first')}\n")
    requirements, _ = fetch_wheels(str(lock), [str(tmp_path / "wheels")], "3.10", INDEX)
    assert Path(requirements).read_text() == lock.read_text()
    assert not (tmp_path / "wheels" / "lock.txt").exists()


def test_without_a_wheel_index_missing_hashes_are_an_error(index, tmp_path):
    wheel(index, "first")
    lock = tmp_path / "lock.txt"
    lock.write_text("first==1.0+rocm6.0\n")
    with pytest.raises(EasyBuildError, match="line 1: no hash of first==1.0.*'wheel_index'"):
        fetch_wheels(str(lock), [str(tmp_path / "wheels")], "3.10")
    assert not list((tmp_path / "wheels").glob("*.whl"))


def test_the_error_for_a_missing_package_has_its_line_and_the_available_versions(index, tmp_path):
    first, second = wheel(index, "first"), wheel(index, "second")
    lock = tmp_path / "lock.txt"
    lock.write_text(f"first==1.0+rocm6.0 --hash=sha256:{first}\n\nsecond==2.99.0 --hash=sha256:{second}\n")
    with pytest.raises(EasyBuildError) as caught:
        fetch_wheels(str(lock), [str(tmp_path / "wheels")], "3.10", INDEX)
    message = str(caught.value)
    assert message.startswith(f"{lock}: line 3: no wheel of second==2.99.0 for Python 3.10 on ")
    assert f"{INDEX}, which has 1.0+rocm6.0). Correct the lock, or put the wheel into {tmp_path}/wheels." in message
    assert [path.name for path in (tmp_path / "wheels").iterdir()] == ["first-1.0+rocm6.0-cp310-cp310-linux_x86_64.whl"]

    lock.write_text("# two\nfirst==1.0+rocm6.0\nsecond==2.99.0\n")
    with pytest.raises(EasyBuildError) as caught:
        fetch_wheels(str(lock), [str(tmp_path / "wheels")], "3.10", INDEX)
    assert str(caught.value).startswith(f"{lock}: line 3: no wheel of second==2.99.0 ")
    assert f"put the wheel into {tmp_path}/wheels." in str(caught.value)


def test_constraints_of_a_loaded_module_do_not_apply_to_the_fetch(index, tmp_path, monkeypatch):
    lock, constraints = tmp_path / "lock.txt", tmp_path / "constraints.txt"
    lock.write_text(f"first==1.0+rocm6.0 --hash=sha256:{wheel(index, 'first')}\n")
    constraints.write_text("first==9\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(constraints))
    fetch_wheels(str(lock), [str(tmp_path / "wheels")], "3.10", INDEX)


@pytest.fixture
def recorded(index, tmp_path):
    """A lock without a hash, and the directory in which the first fetch recorded it, as the first test has it."""
    lock, wheels = tmp_path / "lock.txt", tmp_path / "wheels"
    wheels.mkdir()
    lock.write_text("first==1.0+rocm6.0\n")
    (wheels / "lock.txt").write_text(f"first==1.0+rocm6.0 --hash=sha256:{wheel(wheels, 'first')}\n")
    return lock, wheels


@pytest.mark.parametrize(
    ("poisoned", "mode", "who"), [(".", 0o020, "group daemon can"), ("lock.txt", 0o002, "every user can")]
)
def test_hashes_that_other_users_could_have_recorded_are_refused(recorded, poisoned, mode, who):
    lock, wheels = recorded
    path = wheels / poisoned
    shutil.chown(path, group="daemon") if os.getuid() == 0 else pytest.skip("only root can give files away")
    path.chmod(path.stat().st_mode | mode)
    with pytest.raises(EasyBuildError, match=rf"cannot be trusted: {who} write to {wheels}.*chmod go-w"):
        fetch_wheels(str(lock), [str(wheels)], "3.10", INDEX)
    # a lock that has its hashes needs no record
    lock.write_text((wheels / "lock.txt").read_text())
    fetch_wheels(str(lock), [str(wheels)], "3.10", INDEX)


def test_hashes_of_another_user_are_refused_and_those_of_a_group_that_installs_are_trusted(recorded):
    lock, wheels = recorded
    if os.getuid():
        pytest.skip("only root can give files away")
    shutil.chown(wheels / "lock.txt", user="daemon")
    with pytest.raises(EasyBuildError, match=r"lock.txt belongs to user daemon\. Let that user install"):
        fetch_wheels(str(lock), [str(wheels)], "3.10", INDEX)
    shutil.chown(wheels / "lock.txt", group="daemon")
    (wheels / "lock.txt").chmod(0o664)
    update_build_option("group_writable_installdir", True)
    fetch_wheels(str(lock), [str(wheels)], "3.10", INDEX)


def test_only_the_user_can_write_to_a_new_directory_for_records_whatever_the_umask(prefix, tmp_path):
    mask = os.umask(0)
    try:
        make_directory(str(tmp_path / "p" / "wheels"))
    finally:
        os.umask(mask)
    assert (tmp_path / "p" / "wheels").stat().st_mode & 0o777 == 0o755
