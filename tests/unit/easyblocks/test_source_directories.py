"""Directories on the source path: whether their records of hashes can be trusted."""

import os
import shutil

import pytest
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import update_build_option

from pytorch_install.directories import make_directory, require_trust

#: Directories know nothing of modules.
pytestmark = pytest.mark.parametrize("prefix", ["Lua"], indirect=True)


@pytest.fixture
def record(prefix, tmp_path):
    """A record in a directory, both of this user."""
    path = tmp_path / "images" / "x.sif.sha256"
    path.parent.mkdir()
    path.touch()
    return path


@pytest.mark.parametrize(
    ("poisoned", "mode", "who"),
    [("images", 0o020, "group daemon can"), ("images/x.sif.sha256", 0o002, "every user can")],
)
def test_records_that_other_users_could_have_written_are_refused(record, tmp_path, poisoned, mode, who):
    path = tmp_path / poisoned
    shutil.chown(path, group="daemon") if os.getuid() == 0 else pytest.skip("only root can give files away")
    path.chmod(path.stat().st_mode | mode)
    with pytest.raises(EasyBuildError, match=rf"cannot be trusted: {who} write to {path}.*chmod go-w"):
        require_trust(record.parent, record)


def test_records_of_another_user_are_refused_and_those_of_a_group_that_installs_are_trusted(record):
    if os.getuid():
        pytest.skip("only root can give files away")
    shutil.chown(record, user="daemon")
    with pytest.raises(EasyBuildError, match=r"x.sif.sha256 belongs to user daemon\. Let that user install"):
        require_trust(record.parent, record)
    shutil.chown(record, group="daemon")
    record.chmod(0o664)
    update_build_option("group_writable_installdir", True)
    require_trust(record.parent, record)


def test_only_the_user_can_write_to_a_new_directory_for_records_whatever_the_umask(prefix, tmp_path):
    mask = os.umask(0)
    try:
        make_directory(str(tmp_path / "p" / "images"))
    finally:
        os.umask(mask)
    assert (tmp_path / "p" / "images").stat().st_mode & 0o777 == 0o755
