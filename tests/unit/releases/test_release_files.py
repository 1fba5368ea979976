"""A release: one version, the same files from each build, and a wheel with all that an installation is made of."""

import os
import re
import subprocess
import zipfile

import pytest
from repository import TREE

from testbed.layout import TestbedError as Error  # pytest would take it for a class of tests
from tools.releases import files

VERSION = files.version_of(TREE / "pyproject.toml")
#: Where the wheel has the rooms of the tree.
ROOMS = {
    "pytorch_easybuild": ("bin", "easyblocks", "libexec", "modulefiles", "payload", "runscripts"),
    "easybuild": ("easyconfigs",),
}


@pytest.fixture
def repository(tmp_path):
    """A repository of one commit with the files of this tree."""
    if not (TREE / ".git").exists():
        pytest.skip("This tree is no git repository.")
    copy = tmp_path / "repository"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", "--depth=1", f"file://{TREE}", copy], check=True)
    return copy


def tracked(tree, *rooms):
    """The names of a repository's files in some directories."""
    command = ["git", "ls-files", *rooms]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout.split()


def test_one_version_everywhere():
    assert re.search(r"^## (\S+)", (TREE / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == VERSION
    assert files.version_of(TREE / "runscripts" / "pyproject.toml") == VERSION
    assert f"\nversion: {VERSION}\n" in (TREE / "CITATION.cff").read_text()
    named = re.findall(r"pytorch[-_]easybuild-([\d.]+\d)", (TREE / "docs" / "install.md").read_text())
    assert set(named) == {VERSION}


def test_builds_under_two_umasks_are_equal_and_the_wheel_has_all_files(repository, tmp_path, release_python):
    for directory, umask in (("first", 0o022), ("second", 0o077)):
        before = os.umask(umask)
        try:
            files.build(repository, tmp_path / directory, release_python)
        finally:
            os.umask(before)
    files.require_equal(tmp_path / "first", tmp_path / "second")
    wheel = next((tmp_path / "first").glob("pytorch_easybuild-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
    expected = set()
    for place, rooms in ROOMS.items():
        expected.update(f"{place}/{name}" for name in tracked(repository, *rooms))
    assert expected - set(entries) == set()
    own = {name for name in set(entries) - expected if ".dist-info/" not in name}
    assert own == {"pytorch_easybuild/__init__.py"}
    start = entries["pytorch_easybuild/runscripts/start"]
    assert start.external_attr >> 16 & 0o111 == 0o111


def test_builds_that_differ_and_files_that_are_not_committed_are_errors(repository, tmp_path):
    for directory, digest in (("first", "0" * 64), ("second", "1" * 64)):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / files.SUMS).write_text(f"{digest}  a.whl\n{'2' * 64}  b.whl\n")
    with pytest.raises(Error, match=r"two builds differ: a\.whl\. Report it"):
        files.require_equal(tmp_path / "first", tmp_path / "second")
    files.require_committed(repository)
    (repository / "new.py").touch()
    with pytest.raises(Error, match=r"files are not committed: .*\n\?\? new\.py\nCommit them"):
        files.require_committed(repository)
    with pytest.raises(Error, match="is no git repository"):
        files.require_committed(tmp_path)
