"""Checks, without pip, whether a directory has all wheels of a lock."""

import hashlib
from pathlib import Path

import pytest
from easybuild.easyblocks.generic import lockedvenv
from easybuild.easyblocks.generic.lockedvenv import fetch_wheels, has_wheels, read_lock
from easybuild.tools.build_log import EasyBuildError
from wheel_files import write_wheel


@pytest.fixture
def wheels(tmp_path):
    """A function that makes wheels as plain files in a directory; returns their hashes."""
    directory = tmp_path / "wheels"
    directory.mkdir()

    def make(*names):
        for name in names:
            (directory / name).write_text(name)
        return [hashlib.sha256(name.encode()).hexdigest() for name in names]

    make.directory = directory
    return make


def there(wheels, lock, python_version="3.11"):
    """The result of `has_wheels` for a lock's text."""
    path = wheels.directory.parent / "lock.txt"
    path.write_text(lock)
    return has_wheels(read_lock(str(path)), str(wheels.directory), python_version)


def test_a_directory_with_every_wheel_of_the_lock_needs_no_pip(wheels, prefix, monkeypatch):
    first, second = wheels("torch-2.3.1+rocm6.0-cp311-cp311-linux_x86_64.whl", "Typing_Extensions-4.0-py3-none-any.whl")
    lock = (
        f"# torch\ntorch==2.3.1+rocm6.0 --hash=sha256:{first}\ntyping-extensions==4.0 \\\n --hash=sha256:{second} # x\n"
    )
    assert there(wheels, lock)
    monkeypatch.setattr(lockedvenv, "run", lambda *_, **__: pytest.fail("pip was started"))
    fetch_wheels(str(wheels.directory.parent / "lock.txt"), [str(wheels.directory)], "3.11")


def test_a_read_only_directory_is_used_if_it_has_the_wheels_and_skipped_if_not(wheels, prefix):
    (first,) = wheels("numpy-2.0-py3-none-any.whl")
    lock = wheels.directory.parent / "lock.txt"
    lock.write_text(f"numpy==2.0 --hash=sha256:{first}\n")
    # no user, not even root, can write below a file or in /proc
    for directories in (["/proc/self/wheels", wheels.directory], [wheels.directory, "/proc/self/wheels"]):
        requirements, directory = fetch_wheels(str(lock), list(map(str, directories)), "3.11")
        assert directory == str(wheels.directory)
        assert Path(requirements).read_text() == lock.read_text()
    (wheels.directory / "numpy-2.0-py3-none-any.whl").unlink()
    with pytest.raises(EasyBuildError, match=r"No writable directory for the wheels of .*lock.txt: /proc/self"):
        fetch_wheels(str(lock), ["/proc/self/wheels"], "3.11")


def test_wheels_with_other_hashes_are_replaced(prefix, tmp_path, monkeypatch):
    """As a publisher leaves them who builds wheels again under their names; pip ends at the first that it meets."""
    hashes = {}
    for place in ("fetched", "index"):
        (tmp_path / place).mkdir()
        for name in ("one", "two", "three"):
            hashes[name] = write_wheel(tmp_path / place / f"{name}-1.0-py3-none-any.whl", content=f"# {place}")
    lock = tmp_path / "lock.txt"
    lock.write_text("".join(f"{name}==1.0 --hash=sha256:{digest}\n" for name, digest in hashes.items()))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    fetch_wheels(str(lock), [str(tmp_path / "fetched")], "3.11")
    for wheel in (tmp_path / "index").iterdir():
        assert (tmp_path / "fetched" / wheel.name).read_bytes() == wheel.read_bytes()


HERE, OTHER = "x86_64", "aarch64"


@pytest.mark.parametrize(
    ("pinned", "tags", "locked", "is_there"),
    [
        ("2.0", f"cp311-cp311-manylinux_2_28_{HERE}", "its hash", True),
        ("2.1", f"cp311-cp311-manylinux_2_28_{HERE}", "its hash", False),
        ("2.0", f"cp311-cp311-manylinux_2_28_{HERE}", "another", False),
        ("2.0", f"cp311-cp311-linux_{OTHER}", "its hash", False),
        # of several hashes, one must be of a wheel for this Python and machine
        ("2.0", f"cp311-cp311-manylinux_2_28_{HERE}", "both", True),
        ("2.0", f"cp312-cp312-manylinux_2_28_{HERE}", "both", False),
        ("2.0", f"cp36-abi3-manylinux2014_{OTHER}", "both", False),
        ("2.0", f"cp310-abi3-manylinux_2_28_{HERE}", "both", True),
        ("2.0", f"cp312-abi3-manylinux_2_28_{HERE}", "both", False),
        ("2.0", f"cp310-cp310-manylinux_2_28_{HERE}", "both", False),
    ],
)
def test_a_wheel_is_there_if_version_hash_machine_and_python_fit(wheels, monkeypatch, pinned, tags, locked, is_there):
    monkeypatch.setattr("platform.machine", lambda: HERE)
    (its,) = wheels(f"numpy-2.0-{tags}.whl")
    hashes = {"its hash": [its], "another": ["0" * 64], "both": [its, "0" * 64]}[locked]
    lock = f"numpy=={pinned} " + " ".join(f"--hash=sha256:{digest}" for digest in hashes)
    assert there(wheels, lock) is is_there
    assert not there(wheels, f"{lock}\nsympy==1.0 --hash=sha256:{its}\n")
