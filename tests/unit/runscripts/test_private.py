"""Directories that no other user can replace, through all links on the way."""

import os

import pytest
from pytorch_launch import private
from pytorch_launch.private import make_private, not_private, unsuitable
from tables import name, table

UID = os.geteuid()
OTHER = 4242

#: Directories of a node, their modes and owners, and links.
TREE = """
path           | mode | owner | link
home           | 0700 | user  |
home/tmp       | 0755 | user  |
home/scratch   |      |       | ../open/scratch
home/loop      |      |       | loop
home/through   |      |       | ../public/link/tmp
home/own       |      |       | ../public/mine/link
open           | 0777 | user  |
open/scratch   | 0755 | user  |
open/link      |      |       | ../home/tmp
public         | 1777 | user  |
public/mine    | 0755 | user  |
public/mine/link |    |       | ../../home/tmp
public/made    | 0755 | other |
public/link    |      | other | ../home
theirs         | 1777 | other |
group          | 0770 | user  |
home/file      | file |       |
"""
#: Paths, and why they are not used.
REASONS = """
path                 | reason
home/tmp             |
home/tmp/            |
home//tmp/./         |
home/../home/tmp     |
open/../home/tmp     |
public               |
group                |
home/own             |
home/absent          | No such file or directory
home/file            | Not a directory
open                 | open, as it has no sticky bit
open/scratch         | open, as it has no sticky bit
# the directories of both the link and what it leads to, and of each link between
home/scratch         | open, as it has no sticky bit
open/link            | open, as it has no sticky bit
home/loop            | Too many levels of symbolic links
theirs               | theirs belongs to user 4242, who can replace what is in it
public/made          | public/made belongs to another user
public/made/../mine  | public/made belongs to another user
public/link/tmp      | public/link belongs to another user
home/through         | public/link belongs to another user
"""


@pytest.fixture
def tree(tmp_path):
    """Make TREE; returns its directory."""
    for row in table(TREE):
        path = tmp_path / row["path"]
        if row["link"]:
            path.symlink_to(row["link"])
        elif row["mode"] == "file":
            path.touch()
        else:
            path.mkdir()
    for row in table(TREE):
        if row["owner"] == "other" and UID == 0:
            os.chown(tmp_path / row["path"], OTHER, OTHER, follow_symlinks=False)
        if row["mode"].isdecimal():
            (tmp_path / row["path"]).chmod(int(row["mode"], 8))
    return tmp_path


@pytest.mark.parametrize("row", table(REASONS), ids=name)
def test_each_directory_and_link_on_the_way_counts(tree, row):
    if UID != 0 and "belongs to" in row["reason"]:
        pytest.skip("only root can make another user's directory")
    fault = unsuitable(f"{tree}/{row['path']}", UID)
    assert fault is None if not row["reason"] else row["reason"] in fault


def test_a_relative_path_and_a_directory_that_cannot_be_written_are_not_used(tmp_path, monkeypatch):
    assert unsuitable("scratch", UID) == "not an absolute path"
    monkeypatch.setattr("os.access", lambda *_: False)
    assert unsuitable(str(tmp_path), UID) == "not writable"


@pytest.mark.skipif(UID != 0, reason="only root can make another user's directory")
def test_in_a_user_namespace_roots_directories_belong_to_nobody_and_are_used(tmp_path, monkeypatch):
    os.chown(tmp_path, private.NOBODY, private.NOBODY)
    tmp_path.chmod(0o1777)
    assert "belongs to user 65534" in unsuitable(str(tmp_path), UID)
    monkeypatch.setattr(private, "read", {"/proc/self/uid_map": "4711 4711 1"}.get)
    assert unsuitable(str(tmp_path), UID) is None


@pytest.mark.parametrize("umask", [0o022, 0])
def test_directories_are_made_private_whatever_the_umask(tmp_path, umask):
    paths = [tmp_path / "a", tmp_path / "a" / "b"]
    before = os.umask(umask)
    try:
        assert make_private(*paths) is None
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o7777 for path in paths] == [0o700] * 2
    assert make_private(*paths) is None  # by another rank


IN_THE_WAY = """
kind  | reason
link  | is not a directory
file  | is not a directory
other | belongs to user 4242
0777  | is open to others, mode 0777
1777  | is open to others, mode 1777
0720  | is open to others, mode 0720
0701  | is open to others, mode 0701
"""


def put_in_the_way(path, kind):
    """Let a path be what another user, or a mistake, made there first."""
    if kind == "link":
        (path.parent / "trap").mkdir(mode=0o700)
        path.symlink_to("trap")
    elif kind == "file":
        path.write_text("precious")
    elif kind == "other":
        if UID != 0:
            pytest.skip("only root can make another user's directory")
        path.mkdir(mode=0o700)
        os.chown(path, OTHER, OTHER)
    else:
        path.mkdir()
        path.chmod(int(kind, 8))


@pytest.mark.parametrize("row", table(IN_THE_WAY), ids=name)
def test_what_is_in_the_way_is_named_and_not_used(tmp_path, row):
    path = tmp_path / "caches"
    put_in_the_way(path, row["kind"])
    for fault in (make_private(path, path / "below"), not_private(path)):
        assert str(path) in fault and row["reason"] in fault
    assert not (path / "below").exists()
