"""Caches avoid directories that other users can prepare, read or write."""

import os

import pytest
from cache_directories import KEY, UID, assert_elsewhere_and_private, everything_in, place, usual


def test_a_symbolic_link_in_the_way_is_not_followed(tmp_path):
    trap = tmp_path / "trap"
    trap.mkdir(mode=0o700)
    base = tmp_path / "base"
    base.mkdir()
    (base / f"pytorch-{UID}").symlink_to(trap)
    directory, variables, warnings = place({"TMPDIR": str(base)}, UID, KEY, create=True)
    assert everything_in(trap) == []
    assert_elsewhere_and_private(base, directory, variables)
    assert len(warnings) == 1
    assert f"{base}/pytorch-{UID} is not a directory" in warnings[0]


def test_a_symbolic_link_deeper_down_is_not_followed_either(tmp_path):
    trap = tmp_path / "trap"
    trap.mkdir(mode=0o700)
    base = tmp_path / "base"
    usual(base).mkdir(parents=True, mode=0o700)
    (base / f"pytorch-{UID}").chmod(0o700)
    (usual(base) / "triton").symlink_to(trap)
    directory, variables, warnings = place({"TMPDIR": str(base)}, UID, KEY, create=True)
    assert everything_in(trap) == []
    assert_elsewhere_and_private(base, directory, variables)
    assert "triton is not a directory" in warnings[0]


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o720, 0o701, 0o750])
def test_a_directory_that_others_can_reach_is_not_used(tmp_path, mode):
    (tmp_path / f"pytorch-{UID}").mkdir()
    (tmp_path / f"pytorch-{UID}").chmod(mode)
    directory, variables, warnings = place({"TMPDIR": str(tmp_path)}, UID, KEY, create=True)
    assert everything_in(tmp_path / f"pytorch-{UID}") == []
    assert_elsewhere_and_private(tmp_path, directory, variables)
    assert f"open to others, mode {mode:04o}" in warnings[0]


def test_a_directory_of_another_user_is_not_used_and_its_owner_is_named(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory to another user")
    squatted = tmp_path / f"pytorch-{UID}"
    squatted.mkdir(mode=0o700)
    os.chown(squatted, 4242, -1)
    directory, variables, warnings = place({"TMPDIR": str(tmp_path)}, UID, KEY, create=True)
    assert everything_in(squatted) == []
    assert_elsewhere_and_private(tmp_path, directory, variables)
    assert f"{squatted} belongs to user 4242" in warnings[0]
    assert directory.rsplit("/", 1)[0] in warnings[0]


def test_a_file_in_the_way_is_left_alone(tmp_path):
    (tmp_path / f"pytorch-{UID}").write_text("precious")
    directory, variables, _ = place({"TMPDIR": str(tmp_path)}, UID, KEY, create=True)
    assert (tmp_path / f"pytorch-{UID}").read_text() == "precious"
    assert_elsewhere_and_private(tmp_path, directory, variables)


def test_two_ranks_that_meet_a_squatter_get_different_names(tmp_path):
    (tmp_path / f"pytorch-{UID}").write_text("in the way")
    env = {"TMPDIR": str(tmp_path)}
    assert place(env, UID, KEY, create=True)[0] != place(env, UID, KEY, create=True)[0]


needs_root = pytest.mark.skipif(UID != 0, reason="only root can make another user's directory")
OTHER = 4242


def given_to(directory, user, mode):
    directory.mkdir()
    os.chown(directory, user, user)
    directory.chmod(mode)
    return directory


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
