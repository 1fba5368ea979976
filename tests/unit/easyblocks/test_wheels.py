"""Checks, without pip, whether a directory has all wheels of a lock."""

import hashlib
import platform
import zipfile
from pathlib import Path

import pytest
from easybuild.easyblocks.generic import lockedvenv
from easybuild.easyblocks.generic.lockedvenv import fetch_wheels, has_wheels, read_lock
from easybuild.tools.build_log import EasyBuildError

#: Wheels know nothing of modules.
ONE_SYNTAX = pytest.mark.parametrize("prefix", ["Lua"], indirect=True)


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


@ONE_SYNTAX
def test_a_directory_with_every_wheel_of_the_lock_needs_no_pip(wheels, prefix, monkeypatch):
    first, second = wheels("torch-2.3.1+rocm6.0-cp311-cp311-linux_x86_64.whl", "Typing_Extensions-4.0-py3-none-any.whl")
    lock = (
        f"# torch\ntorch==2.3.1+rocm6.0 --hash=sha256:{first}\ntyping-extensions==4.0 \\\n --hash=sha256:{second} # x\n"
    )
    assert there(wheels, lock)
    monkeypatch.setattr(lockedvenv, "run", lambda *_, **__: pytest.fail("pip was started"))
    fetch_wheels(str(wheels.directory.parent / "lock.txt"), [str(wheels.directory)], "3.11")


@ONE_SYNTAX
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


def test_a_missing_wheel_and_one_with_another_hash_are_noticed(wheels):
    (first,) = wheels("numpy-2.0-cp311-cp311-manylinux_2_28_x86_64.whl")
    assert there(wheels, f"numpy==2.0 --hash=sha256:{first}\n")
    assert not there(wheels, f"numpy==2.0 --hash=sha256:{first}\nsympy==1.0 --hash=sha256:{first}\n")
    assert not there(wheels, f"numpy==2.1 --hash=sha256:{first}\n")
    assert not there(wheels, f"numpy==2.0 --hash=sha256:{'0' * 64}\n")


def test_of_several_allowed_wheels_one_must_fit_this_python(wheels):
    names = [f"numpy-2.0-cp3{minor}-cp3{minor}-manylinux_2_28_x86_64.whl" for minor in (11, 12)]
    first, second = wheels(*names)
    lock = f"numpy==2.0 --hash=sha256:{first} --hash=sha256:{second}\n"
    (wheels.directory / names[0]).unlink()
    assert there(wheels, lock, "3.12")
    assert not there(wheels, lock, "3.11")


@ONE_SYNTAX
def test_wheels_with_other_hashes_are_replaced(prefix, tmp_path, monkeypatch):
    """As a publisher leaves them who builds wheels again under their names; pip ends at the first that it meets."""
    hashes = {}
    for place in ("fetched", "index"):
        (tmp_path / place).mkdir()
        for name in ("one", "two", "three"):
            wheel = tmp_path / place / f"{name}-1.0-py3-none-any.whl"
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr(f"{name}.py", f"# {place}\n")
                info = f"{name}-1.0.dist-info"
                archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
                archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
                archive.writestr(f"{info}/RECORD", "")
            if place == "index":
                hashes[name] = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = tmp_path / "lock.txt"
    lock.write_text("".join(f"{name}==1.0 --hash=sha256:{digest}\n" for name, digest in hashes.items()))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    fetch_wheels(str(lock), [str(tmp_path / "fetched")], "3.11")
    for wheel in (tmp_path / "index").iterdir():
        assert (tmp_path / "fetched" / wheel.name).read_bytes() == wheel.read_bytes()


MACHINES = ("x86_64", "aarch64")


@pytest.mark.parametrize("machine", MACHINES)
def test_a_lock_for_two_machines_needs_the_wheel_of_this_one(wheels, machine, monkeypatch):
    names = [f"psutil-7.0-cp36-abi3-manylinux2014_{other}.whl" for other in MACHINES]
    first, second = wheels(*names)
    lock = f"psutil==7.0 --hash=sha256:{first} --hash=sha256:{second}\n"
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert there(wheels, lock)
    (wheels.directory / names[MACHINES.index(machine)]).unlink()
    assert not there(wheels, lock)


def test_a_wheel_for_another_machine_is_not_there_whatever_the_lock(wheels, monkeypatch):
    (only,) = wheels("torch-2.13.0+rocm7.1-cp311-cp311-linux_x86_64.whl")
    lock = f"torch==2.13.0+rocm7.1 --hash=sha256:{only}\n"
    for machine, fits in zip(MACHINES, (True, False)):
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        assert there(wheels, lock) is fits


@pytest.mark.parametrize(("tags", "fits"), [("cp310-abi3", True), ("cp312-abi3", False), ("cp310-cp310", False)])
def test_a_wheel_of_the_stable_abi_fits_later_pythons(wheels, tags, fits):
    (first,) = wheels(f"pillow-13.0-{tags}-manylinux_2_28_{platform.machine()}.whl")
    assert there(wheels, f"pillow==13.0 --hash=sha256:{first} --hash=sha256:{'0' * 64}\n") is fits
