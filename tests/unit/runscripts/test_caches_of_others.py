"""Caches avoid directories that other users can prepare, read or write."""

import os
from pathlib import Path

import pytest
from cache_directories import KEY, UID, assert_elsewhere_and_private, everything_in, place, usual

needs_root = pytest.mark.skipif(UID != 0, reason="only root can make another user's directory")
OTHER = 4242


def given_to(directory, user, mode):
    directory.mkdir(parents=True)
    os.chown(directory, user, user)
    directory.chmod(mode)
    return directory


def in_the_way(base, kind):
    """What another user, or a mistake, put where the caches go, and why it is not used."""
    (base / "trap").mkdir(mode=0o700)
    top = base / f"pytorch-{UID}"
    if kind == "link":
        top.symlink_to(base / "trap")
        return f"{top} is not a directory"
    if kind == "link below":
        usual(base).mkdir(parents=True)
        top.chmod(0o700)
        usual(base).chmod(0o700)
        (usual(base) / "triton").symlink_to(base / "trap")
        return "triton is not a directory"
    if kind == "file":
        top.write_text("precious")
        return f"{top} is not a directory"
    if kind == "other user":
        given_to(top, OTHER, 0o700)
        return f"{top} belongs to user {OTHER}"
    top.mkdir()
    top.chmod(kind)
    return f"open to others, mode {kind:04o}"


@pytest.mark.parametrize(
    "kind",
    [
        *("link", "link below", "file", 0o777, 0o1777, 0o720, 0o701, 0o750),
        pytest.param("other user", marks=needs_root),
    ],
)
def test_what_is_in_the_way_is_not_followed_or_changed_and_each_rank_gets_another_name(tmp_path, kind):
    reason = in_the_way(tmp_path, kind)
    before = everything_in(tmp_path)
    used = set()
    for _ in range(2):
        directory, variables, warnings = place({"TMPDIR": str(tmp_path)}, UID, KEY, create=True)
        assert_elsewhere_and_private(tmp_path, directory, variables)
        (warning,) = warnings
        assert reason in warning and directory.rsplit("/", 1)[0] in warning
        used.add(directory)
    assert len(used) == 2
    assert set(everything_in(tmp_path / "trap")) == set()
    left = [name for name in everything_in(tmp_path) if not any(name.startswith(Path(x).parent.name) for x in used)]
    assert left == before or kind == "link below"  # the directories of the caches before the link are made


@needs_root
def test_a_public_directory_of_another_user_is_not_used(tmp_path):
    """Its owner can replace what is in it, in spite of the sticky bit."""
    public = given_to(tmp_path / "public", OTHER, 0o1777)
    directory, _, warnings = place({"TMPDIR": str(public)}, UID, KEY, create=True, default=str(tmp_path))
    assert directory == str(usual(tmp_path))
    assert warnings == [
        f"cannot use {public} for caches: it belongs to user {OTHER}, who can replace what is in it. "
        "Export another TMPDIR"
    ]
    assert list(public.iterdir()) == []


@needs_root
@pytest.mark.parametrize("kind", ["directory", "link"])
def test_a_part_of_the_path_that_another_user_made_in_a_public_directory_is_not_used(tmp_path, kind):
    public = given_to(tmp_path / "public", 0, 0o1777)
    if kind == "directory":
        theirs = given_to(public / "theirs", OTHER, 0o755)
    else:
        theirs = public / "theirs"
        theirs.symlink_to(given_to(tmp_path / "own", UID, 0o700), target_is_directory=True)
        os.chown(theirs, OTHER, OTHER, follow_symlinks=False)
    (theirs / "tmp").mkdir()
    _, _, (warning,) = place({"TMPDIR": f"{theirs}//tmp/./"}, UID, KEY, create=True, default=str(tmp_path))
    assert f"{theirs} belongs to another user, who can replace it" in warning


@needs_root
def test_in_a_user_namespace_roots_directories_belong_to_nobody_and_are_used(tmp_path, monkeypatch):
    monkeypatch.setattr("pytorch_launch.caches.read", {"/proc/self/uid_map": "4711 4711 1"}.get)
    public = given_to(tmp_path / "public", 65534, 0o1777)
    directory, _, warnings = place({"TMPDIR": str(public)}, UID, KEY, create=True)
    assert (directory, warnings) == (str(usual(public)), [])
