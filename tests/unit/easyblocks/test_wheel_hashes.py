"""Wheels that a lock names without a hash, as none is published: the first fetch notes it, later ones compare."""

import hashlib
import zipfile

import pytest
from easybuild.tools.build_log import EasyBuildError

from pytorch_install.wheels import fetch_wheels

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


def test_the_first_fetch_notes_hashes_that_a_lock_lacks_and_later_ones_compare_them(index, tmp_path):
    first, second = wheel(index, "first"), wheel(index, "second")
    lock = tmp_path / "lock.txt"
    lock.write_text(f"# a lock\nfirst==1.0+rocm6.0\nsecond==1.0+rocm6.0 --hash=sha256:{second}\n")
    wheels = tmp_path / "wheels"

    complete = fetch_wheels(str(lock), str(wheels), "3.10", INDEX)
    noted = f"# a lock\nfirst==1.0+rocm6.0 --hash=sha256:{first}\nsecond==1.0+rocm6.0 --hash=sha256:{second}\n"
    assert (wheels / "lock.txt").read_text() == noted
    assert complete == str(wheels / "lock.txt")
    assert sorted(path.name for path in wheels.glob("*.whl")) == sorted(path.name for path in index.glob("*.whl"))

    for path in wheels.glob("first*"):
        path.unlink()
    wheel(index, "first", content="print('another one')\n")
    with pytest.raises(EasyBuildError, match="Fetching the wheels that .*lock.txt locks failed"):
        fetch_wheels(str(lock), str(wheels), "3.10", INDEX)
    assert (wheels / "lock.txt").read_text() == noted


def test_a_lock_with_all_hashes_is_used_as_it_is(index, tmp_path):
    lock = tmp_path / "lock.txt"
    lock.write_text(f"first==1.0+rocm6.0 --hash=sha256:{wheel(index, 'first')}\n")
    assert fetch_wheels(str(lock), str(tmp_path / "wheels"), "3.10", INDEX) == str(lock)
    assert not (tmp_path / "wheels" / "lock.txt").exists()


def test_without_an_index_of_the_recipes_own_nobody_is_believed_about_a_hash(index, tmp_path):
    wheel(index, "first")
    lock = tmp_path / "lock.txt"
    lock.write_text("first==1.0+rocm6.0\n")
    with pytest.raises(EasyBuildError, match="has no hash of first==1.0.*'wheel_index'"):
        fetch_wheels(str(lock), str(tmp_path / "wheels"), "3.10")
    assert not list((tmp_path / "wheels").glob("*.whl"))
