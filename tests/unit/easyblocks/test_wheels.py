"""What a lock may hold, and its wheels: those that are there, those that are fetched, and those without a hash."""

import platform
import sys
from pathlib import Path

import pytest
from distributions import sha256, write_wheel
from easybuild.easyblocks.generic import lockedvenv
from easybuild.easyblocks.generic.lockedvenv import read_lock, requirement
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import update_build_option

pytestmark = pytest.mark.early

#: Never asked, as pip is told to use no index.
INDEX = "https://wheels.invalid/"


@pytest.fixture
def directory(tmp_path):
    """A directory for wheels."""
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A directory that is all that pip finds wheels in."""
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "index"


@pytest.fixture
def fetch(prefix, tmp_path):
    """A function that fetches the wheels of a lock's text."""

    def fetch(text, *directories, index=INDEX):
        (tmp_path / "lock.txt").write_text(text)
        places = [str(path) for path in directories or [tmp_path / "wheels"]]
        return lockedvenv.fetch_wheels(str(tmp_path / "lock.txt"), places, "3.10", index)

    return fetch


def wheel(directory, name):
    return sha256(write_wheel(directory, name, "1.0+rocm6.0", tag="cp310-cp310-linux_x86_64"))


def test_a_directory_with_every_wheel_of_the_lock_needs_no_index_and_may_be_read_only(directory, fetch, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", INDEX)
    first = sha256(write_wheel(directory, "first", "1.0"))
    lock = f"# a lock\nfirst==1.0 \\\n --hash=sha256:{first} # x\n"
    # no user, not even root, can write in /proc
    requirements, used = fetch(lock, directory, "/proc/self/wheels")
    assert (used, Path(requirements).read_text()) == (str(directory), f"first==1.0 --hash=sha256:{first}\n")
    with pytest.raises(EasyBuildError, match="/proc/self/wheels"):
        fetch(lock, "/proc/self/wheels", directory)


@pytest.mark.slow
def test_wheels_with_other_hashes_are_replaced_whatever_constraints_a_loaded_module_has(
    index, directory, fetch, tmp_path, monkeypatch
):
    """As a publisher leaves them who builds wheels again under their names; pip ends at the first that it meets."""
    hashes = {}
    for place in (directory, index):
        for name in ("one", "two"):
            hashes[name] = sha256(write_wheel(place, name, "1.0", {f"{name}.py": f"# {place}"}))
    (tmp_path / "constraints.txt").write_text("one==9\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "constraints.txt"))
    fetch("".join(f"{name}==1.0 --hash=sha256:{digest}\n" for name, digest in hashes.items()), index=None)
    for path in index.iterdir():
        assert (directory / path.name).read_bytes() == path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE"])
def test_a_wheel_without_a_hash_does_not_come_from_an_index_of_the_user(fetch, tmp_path, monkeypatch, place):
    made = {}
    for name in ("recipe", "user"):
        directory = tmp_path / name / "first"
        directory.mkdir(parents=True)
        made[name] = write_wheel(directory, "first", "1.0", {"first.py": f"# {name}"})
        (directory / "index.html").write_text(f'<a href="{made[name].name}">{made[name].name}</a>')
    user = (tmp_path / "user").as_uri()
    (tmp_path / "pip.conf").write_text(f"[global]\nextra-index-url = {user}\n")
    monkeypatch.setenv(place, str(tmp_path / "pip.conf") if place == "PIP_CONFIG_FILE" else user)
    requirements, _ = fetch("first==1.0\n", index=(tmp_path / "recipe").as_uri())
    assert sha256(made["recipe"]) in Path(requirements).read_text()


@pytest.mark.slow
def test_a_wheel_without_a_hash_comes_from_the_recipes_index_and_a_warning_names_it(
    fetch, index, tmp_path, capfd, monkeypatch
):
    first = wheel(index, "first_part")
    second = wheel(index, "second")
    lock = f"# a lock\nFirst.part==1.0+rocm6.0\nsecond==1.0+rocm6.0 --hash=sha256:{second}\n"
    monkeypatch.setattr(lockedvenv, "ALONE", {})  # the user's own stands for the recipe's index
    requirements, directory = fetch(lock)
    warning = "lock.txt has no hash of First.part==1.0+rocm6.0: not verified"
    assert warning in capfd.readouterr().err
    # the install step gets what was fetched here
    fetched = {f"First.part==1.0+rocm6.0 --hash=sha256:{first}", f"second==1.0+rocm6.0 --hash=sha256:{second}"}
    assert set(Path(requirements).read_text().splitlines()) == fetched
    assert directory == str(tmp_path / "wheels")
    assert sorted(path.name for path in Path(directory).iterdir()) == sorted(path.name for path in index.iterdir())

    for path in index.iterdir():
        path.unlink()
    assert set(Path(fetch(lock, index=None).requirements).read_text().splitlines()) == fetched
    assert warning in capfd.readouterr().err
    update_build_option("enforce_checksums", True)
    with pytest.raises(EasyBuildError, match=r"Missing checksum for First\.part==1\.0"):
        fetch(lock)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pin", "index_of_recipe", "message"),
    [
        (f"first==1.0+rocm6.0 --hash=sha256:{'0' * 64}", INDEX, r"first==1\.0\+rocm6\.0 from .* Got +\w{64}"),
        ("first==1.0+rocm6.0", None, "no matching distribution found for first==1.0.* or 'wheel_index'"),
        (f"first==2.99 --hash=sha256:{'0' * 64}", None, r"no matching distribution found for first==2\.99"),
    ],
    ids=["another hash", "no trusted index", "another version"],
)
def test_a_wheel_with_another_hash_or_version_or_without_a_trusted_index_is_refused(
    fetch, index, tmp_path, pin, index_of_recipe, message
):
    wheel(index, "first")
    with pytest.raises(EasyBuildError, match=rf"(?i)^{tmp_path}/lock\.txt: no wheels for Python 3\.10: .*{message}"):
        fetch(f"# a lock\n{pin}\n", index=index_of_recipe)
    assert not list((tmp_path / "wheels").glob("*.whl"))


@pytest.mark.parametrize(
    ("names", "message"),
    [(["a.sif"], "names no lock in 'sources'"), (["a.txt", "b.toml"], "names several locks in .*: a.txt, b.toml")],
)
def test_a_recipe_names_one_lock(container, tmp_path, names, message):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(EasyBuildError, match=message):
        container(f"sources = {names}", "LockedVenv").fetch_step()


@pytest.mark.parametrize("kind", ["LockedVenv", "EB_PyTorchVenv"])
def test_eb_fetch_downloads_to_the_source_path_and_a_login_in_the_recipe_is_an_error(container, index, tmp_path, kind):
    digest = sha256(write_wheel(index, "first", "1.0"))
    (tmp_path / "a.txt").write_text(f"first==1.0 --hash=sha256:{digest}\n")
    app = container("sources = ['a.txt']", kind)
    app.fetch_step()
    assert app.wheels.directory == str(tmp_path / "sources/p/PyTorch/wheels")
    assert [path.suffix for path in Path(app.wheels.directory).iterdir()] == [".whl"]
    with pytest.raises(EasyBuildError, match="'?wheel_index'? has a login.*~/.netrc") as error:
        container("wheel_index = 'https://user:TOKEN@wheels.invalid/'", kind)
    assert "TOKEN" not in str(error.value)


HASH = "--hash=sha256:" + "5d" * 32


def read(tmp_path, text, name="lock.txt"):
    path = tmp_path / name
    path.write_text(text)
    return [requirement(pin) for pin in read_lock(str(path), f"{sys.version_info[0]}.{sys.version_info[1]}")]


def test_a_lock_has_pins_comments_and_blank_lines(prefix, tmp_path):
    other = HASH.replace("5d", "6e")
    text = f"# torch\ntorch==2.13.0+cpu {HASH}  # x\n\na-b==4.16.0 \\\n    {HASH} \\\n    {other}\nzope.x==1!7.0\n"
    assert read(tmp_path, text) == [f"torch==2.13.0+cpu {HASH}", f"a-b==4.16.0 {HASH} {other}", "zope.x==1!7.0"]


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://elsewhere.invalid/simple",
        "-e .",
        f"torch==2.0 {HASH} --global-option=x",
        f"torch @ https://elsewhere.invalid/torch.whl {HASH}",
        f"torch[extra]==2.0 {HASH}",
        f"torch==2.0 ; python_version>'3' {HASH}",
        "torch>=2.0",
        "torch==2.*",
        "torch==2.0 --hash=md5:5d5d",
        f"torch==2.0 {HASH[:-1]}",
        "torch==2.0 \\",
    ],
)
def test_anything_else_is_refused(prefix, tmp_path, line):
    with pytest.raises(EasyBuildError, match=r"lock.txt: `.*` is not one exact version"):
        read(tmp_path, f"numpy==2.0 {HASH}\n{line}\nsympy==1.0 {HASH}\n")


#: As `uv export` and `pip lock` write it.
PYLOCK = """lock-version = "1.0"
created-by = "uv"
requires-python = ">=3.8"
"""


def entry(name, *lines, wheels=(), version="1.0"):
    """An entry of pylock.toml; `wheels` are pairs of a file name and a SHA-256."""
    files = [f'{{ url = "https://elsewhere.invalid/{file}", hashes = {{ sha256 = "{sha}" }} }}' for file, sha in wheels]
    text = ["[[packages]]", f'name = "{name}"', f'version = "{version}"', *lines]
    return "\n".join([*text, f"wheels = [{', '.join(files)}]", ""])


A = "5d" * 32
B = "6e" * 32


def test_entries_of_pylock_that_apply_are_the_pins_with_the_hashes_of_their_wheels(prefix, tmp_path):
    here = platform.machine()
    text = PYLOCK + "".join(
        [
            entry("torch", wheels=[("torch-1.0%2Bcpu-py3-none-any.whl", A), ("x.whl", B)], version="1.0+cpu"),
            entry("numpy", "marker = \"python_full_version < '3.8'\"", wheels=[("n.whl", A)], version="0.9"),
            entry("numpy", f"marker = \"platform_machine == '{here}' and os_name != 'nt'\"", wheels=[("n.whl", B)]),
            entry("other", "marker = \"platform_machine == 'no_machine'\""),
        ]
    )
    assert read(tmp_path, text, "pylock.toml") == [
        f"torch==1.0+cpu --hash=sha256:{A} --hash=sha256:{B}",
        f"numpy==1.0 --hash=sha256:{B}",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PYLOCK + entry("a"), "a has no version, or no wheels with SHA-256: only wheels"),
        (PYLOCK + '[[packages]]\nname = "a"\ndirectory = { path = "." }\n', "a has no version, or no wheels"),
        (PYLOCK + entry("a", wheels=[("a.whl", A)]).replace("sha256", "sha1"), "no wheels with SHA-256"),
        (PYLOCK + entry("a", "marker = \"unknown == '1'\"", wheels=[("a.whl", A)]), "cannot evaluate the marker"),
        (PYLOCK + "environments = [\"sys_platform == 'win32'\"]\n", "is not for Python 3.* but for: sys_platform"),
        ('lock-version = "2.0"\n', "has lock-version 2.0, expected 1.0"),
        ("lock-version = \n", "is not valid TOML"),
    ],
    ids=["sdist", "directory", "another hash", "unknown marker", "environments", "version", "no TOML"],
)
def test_a_pylock_that_cannot_be_installed_as_it_is_written_is_an_error(prefix, tmp_path, text, message):
    with pytest.raises(EasyBuildError, match=f"pylock.toml.*{message}"):
        read(tmp_path, text, "pylock.toml")


def test_without_that_python_a_marker_on_its_patch_release_is_an_error_and_others_apply(prefix, tmp_path, monkeypatch):
    monkeypatch.setattr(lockedvenv, "which", lambda _: None)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    text = PYLOCK + entry("a", f"marker = \"python_full_version >= '{version}'\"", wheels=[("a.whl", A)])
    assert read(tmp_path, text, "pylock.toml") == [f"a==1.0 --hash=sha256:{A}"]
    with pytest.raises(EasyBuildError, match="depends on Python's release. Load a module of that Python"):
        read(tmp_path, text.replace(f"'{version}'", f"'{version}.5'"), "pylock.toml")
