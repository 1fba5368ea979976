"""What a lock may hold, and its wheels: those that are there, those that are fetched, and those without a hash."""

from pathlib import Path

import pytest
from distributions import sha256, write_wheel
from easybuild.easyblocks.generic import lockedvenv
from easybuild.easyblocks.generic.lockedvenv import has_wheels, read_lock, requirements
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import update_build_option

from pytorch_install.parameters import machines_of

#: Never asked, as pip is told to use no index.
INDEX = "https://wheels.invalid/"
HERE, OTHER = "x86_64", "aarch64"


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


def make_file(directory, name):
    """Make a file with the name of a wheel; return its hash."""
    (directory / name).write_text(name)
    return sha256(directory / name)


def wheel(directory, name):
    return sha256(write_wheel(directory, name, "1.0+rocm6.0", tag="cp310-cp310-linux_x86_64"))


def test_a_directory_with_every_wheel_of_the_lock_needs_no_pip(directory, fetch, monkeypatch):
    first = make_file(directory, "torch-2.3.1+rocm6.0-cp310-cp310-linux_x86_64.whl")
    second = make_file(directory, "Typing_Extensions-4.0-py3-none-any.whl")
    monkeypatch.setattr(lockedvenv, "run", lambda *_, **__: pytest.fail("pip was started"))
    fetch(
        f"# torch\ntorch==2.3.1+rocm6.0 --hash=sha256:{first}\ntyping-extensions==4.0 \\\n --hash=sha256:{second} # x\n"
    )


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
    ],
)
def test_a_wheel_is_there_if_version_hash_machine_and_python_fit(
    directory, tmp_path, monkeypatch, pinned, tags, locked, is_there
):
    monkeypatch.setattr("platform.machine", lambda: HERE)
    its = make_file(directory, f"numpy-2.0-{tags}.whl")
    hashes = {"its hash": [its], "another": ["0" * 64], "both": [its, "0" * 64]}[locked]
    pin = f"numpy=={pinned} " + " ".join(f"--hash=sha256:{digest}" for digest in hashes)
    for lock, expected in ((pin, is_there), (f"{pin}\nsympy==1.0 --hash=sha256:{its}\n", False)):
        (tmp_path / "lock.txt").write_text(lock)
        assert has_wheels(read_lock(str(tmp_path / "lock.txt")), str(directory), "3.11") is expected


def test_a_read_only_directory_is_used_if_it_has_the_wheels_and_skipped_if_not(directory, fetch):
    first = make_file(directory, "numpy-2.0-py3-none-any.whl")
    lock = f"numpy==2.0 --hash=sha256:{first}\n"
    # no user, not even root, can write below a file or in /proc
    for directories in (["/proc/self/wheels", directory], [directory, "/proc/self/wheels"]):
        requirements, used = fetch(lock, *directories)
        assert (used, Path(requirements).read_text()) == (str(directory), lock)
    (directory / "numpy-2.0-py3-none-any.whl").unlink()
    with pytest.raises(EasyBuildError, match=r"No writable directory for the wheels of .*lock.txt: /proc/self"):
        fetch(lock, "/proc/self/wheels")


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
    assert Path(fetch(lock, index=None).requirements).read_text() == fetched
    assert warning in capfd.readouterr().err
    update_build_option("enforce_checksums", True)
    with pytest.raises(EasyBuildError, match=r"Missing checksum for first==1\.0"):
        fetch(lock)


@pytest.mark.parametrize(
    ("pin", "index_of_recipe", "message"),
    [
        (f"first==1.0+rocm6.0 --hash=sha256:{'0' * 64}", INDEX, r"no wheel of first==1\.0.*Got +\w{64}"),
        ("first==1.0+rocm6.0", None, "no hash of first==1.0.*'wheel_index'"),
        (f"first==2.99 --hash=sha256:{'0' * 64}", None, r"no wheel of first==2\.99 for Python 3\.10 .*1\.0\+rocm6\.0"),
    ],
    ids=["another hash", "no trusted index", "another version"],
)
def test_a_wheel_with_another_hash_or_version_or_without_a_trusted_index_is_refused_with_its_line(
    fetch, index, tmp_path, pin, index_of_recipe, message
):
    wheel(index, "first")
    with pytest.raises(EasyBuildError, match=rf"^{tmp_path}/lock\.txt: line 2: {message}"):
        fetch(f"# a lock\n{pin}\n", index=index_of_recipe)
    assert not list((tmp_path / "wheels").glob("*.whl"))


@pytest.mark.parametrize(("locks", "found"), [([], "none"), (["/a.txt", "/b.txt"], "/a.txt, /b.txt")])
def test_a_recipe_names_one_lock(container, locks, found):
    app = container("", "LockedVenv")
    app.src, app.dry_run = [{"name": path, "path": path, "checksum": None} for path in locks], True
    with pytest.raises(EasyBuildError, match=f"must name one requirements lock .* found: {found}$"):
        app.checksum_step()


HASH = "--hash=sha256:" + "5d" * 32


def read(tmp_path, text):
    path = tmp_path / "lock.txt"
    path.write_text(text)
    return read_lock(str(path))


def test_a_lock_has_pins_comments_and_blank_lines(tmp_path):
    other = HASH.replace("5d", "6e")
    pins = read(
        tmp_path,
        f"""# torch
torch==2.13.0+cpu {HASH}  # the CPU build

typing-extensions==4.16.0 \\
    {HASH} \\
    {other}
zope.interface==1!7.0
""",
    )
    assert [(pin.line, str(pin), len(pin.hashes)) for pin in pins] == [
        (2, "torch==2.13.0+cpu", 1),
        (6, "typing-extensions==4.16.0", 2),
        (7, "zope.interface==1!7.0", 0),
    ]
    assert requirements(pins).splitlines()[1] == f"typing-extensions==4.16.0 {HASH} {other}"


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://elsewhere.invalid/simple",
        "--no-binary :all:",
        "-r other.txt",
        "-e .",
        f"torch==2.0 {HASH} --global-option=x",
        f"torch==2.0 --config-settings=x=y {HASH}",
        f"torch @ https://elsewhere.invalid/torch.whl {HASH}",
        f"./torch-2.0-py3-none-any.whl {HASH}",
        f"torch[extra]==2.0 {HASH}",
        f"torch==2.0 ; python_version>'3' {HASH}",
        "torch",
        "torch>=2.0",
        "torch==2.*",
        "torch===2.0",
        "torch==${HOME}",
        "torch==2.0 --hash=md5:5d5d",
        f"torch==2.0 {HASH[:-1]}D",
        f"torch==2.0 {HASH[:-1]}",
        "torch==2.0 \\",
    ],
)
def test_anything_else_is_refused_with_its_line(tmp_path, line):
    with pytest.raises(EasyBuildError, match=r"lock.txt: line [23]: `.*` is not one exact version"):
        read(tmp_path, f"numpy==2.0 {HASH}\n{line}\nsympy==1.0 {HASH}\n")


def test_a_package_is_pinned_once(tmp_path):
    with pytest.raises(EasyBuildError, match=r"lock.txt: line 3: Typing.Extensions is in line 1 already"):
        read(tmp_path, f"typing_extensions==4.0 {HASH}\n\nTyping.Extensions==4.1 {HASH}\n")


@pytest.mark.parametrize(
    ("text", "machines"),
    [
        ("# torch\n# machines: x86_64 aarch64\ntorch==2.0\n", ["x86_64", "aarch64"]),
        ("# machines: x86_64\n", ["x86_64"]),
        ("# torch for machines: all\ntorch==2.0\n", None),
    ],
)
def test_a_lock_declares_its_machines_or_leaves_them_to_pip(tmp_path, text, machines):
    (tmp_path / "lock.txt").write_text(text)
    assert machines_of(str(tmp_path / "lock.txt")) == machines
