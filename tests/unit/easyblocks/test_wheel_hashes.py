"""Wheels with the hash of a lock, and without one, as none is published."""

from pathlib import Path

import pytest
from easybuild.easyblocks.generic import lockedvenv
from easybuild.easyblocks.generic.lockedvenv import fetch_wheels
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import update_build_option
from wheel_files import write_wheel

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


def wheel(directory, name):
    return write_wheel(directory / f"{name}-1.0+rocm6.0-cp310-cp310-linux_x86_64.whl")


@pytest.fixture
def fetch(index, tmp_path):
    """A function that fetches the wheels of a lock's text."""

    def fetch(text, index=INDEX):
        (tmp_path / "lock.txt").write_text(text)
        return fetch_wheels(str(tmp_path / "lock.txt"), [str(tmp_path / "wheels")], "3.10", index)

    return fetch


def test_a_wheel_without_a_hash_comes_from_the_recipes_index_and_a_warning_names_it(
    fetch, index, tmp_path, capfd, monkeypatch
):
    first, second = wheel(index, "first"), wheel(index, "second")
    lock = f"# a lock\nfirst==1.0+rocm6.0\nsecond==1.0+rocm6.0 --hash=sha256:{second}\n"
    run, commands = lockedvenv.run, []

    def note(words, *arguments, **options):
        commands.append(words)
        return run(words, *arguments, **options)

    monkeypatch.setattr(lockedvenv, "run", note)
    requirements, directory = fetch(lock)
    warning = "lock.txt has no hash of first==1.0+rocm6.0: not verified"
    assert warning in capfd.readouterr().err
    # the install step gets what was fetched here
    fetched = f"first==1.0+rocm6.0 --hash=sha256:{first}\nsecond==1.0+rocm6.0 --hash=sha256:{second}\n"
    assert Path(requirements).read_text() == fetched
    assert directory == str(tmp_path / "wheels")
    assert sorted(path.name for path in Path(directory).iterdir()) == sorted(path.name for path in index.iterdir())
    # only that index is asked for it
    unverified = [words for words in commands if "--require-hashes" not in words]
    assert [words[-2:] for words in unverified] == [["--index-url", INDEX]]
    assert len(commands) > 1

    for path in index.iterdir():
        path.unlink()
    assert Path(fetch(lock, None).requirements).read_text() == fetched
    assert warning in capfd.readouterr().err


def test_easybuild_can_be_told_to_refuse_a_wheel_without_a_hash(fetch, index, tmp_path):
    wheel(index, "first")
    update_build_option("enforce_checksums", True)
    with pytest.raises(EasyBuildError, match=r"Missing checksum for first==1\.0"):
        fetch("first==1.0+rocm6.0\n")
    assert not (tmp_path / "wheels").exists()


@pytest.mark.parametrize(
    ("lock", "index_of_recipe", "message"),
    [
        (f"first==1.0+rocm6.0 --hash=sha256:{'0' * 64}\n", INDEX, r"line 1: no wheel of first==1\.0.*Got +\w{64}"),
        ("first==1.0+rocm6.0\n", None, "line 1: no hash of first==1.0.*'wheel_index'"),
    ],
)
def test_a_wheel_with_another_hash_or_without_a_trusted_index_is_refused(
    fetch, index, tmp_path, lock, index_of_recipe, message
):
    wheel(index, "first")
    with pytest.raises(EasyBuildError, match=message):
        fetch(lock, index_of_recipe)
    assert not list((tmp_path / "wheels").glob("*.whl"))


@pytest.mark.parametrize("has_hashes", [True, False])
def test_the_error_for_a_missing_package_has_its_line_and_the_available_versions(fetch, index, tmp_path, has_hashes):
    first, second = (f" --hash=sha256:{wheel(index, name)}" * has_hashes for name in ("first", "second"))
    with pytest.raises(EasyBuildError) as caught:
        fetch(f"first==1.0+rocm6.0{first}\n\nsecond==2.99.0{second}\n")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/lock.txt: line 3: no wheel of second==2.99.0 for Python 3.10 on ")
    assert "(from versions: 1.0+rocm6.0)" in message or not has_hashes
    assert message.endswith(f"Correct the lock, or put the wheel into {tmp_path}/wheels.")
    assert [path.name for path in (tmp_path / "wheels").iterdir()] == ["first-1.0+rocm6.0-cp310-cp310-linux_x86_64.whl"]


def test_constraints_of_a_loaded_module_do_not_apply_to_the_fetch(fetch, index, tmp_path, monkeypatch):
    (tmp_path / "constraints.txt").write_text("first==9\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "constraints.txt"))
    fetch(f"first==1.0+rocm6.0 --hash=sha256:{wheel(index, 'first')}\n")
