"""Notes of downloads on the source path: whether they can be trusted."""

import os
import shutil

import pytest
from easybuild.tools.config import update_build_option

from pytorch_install.images import RegistryImage

#: Directories know nothing of modules.
pytestmark = pytest.mark.parametrize("prefix", ["Lua"], indirect=True)


@pytest.fixture
def image(prefix):
    return RegistryImage.__new__(RegistryImage)


@pytest.fixture
def record(prefix, tmp_path):
    """A note in a directory, both of this user."""
    path = tmp_path / "images" / "x.sif.json"
    path.parent.mkdir()
    path.touch()
    return path


@pytest.mark.parametrize(
    ("poisoned", "mode", "who"),
    [("images", 0o020, "its group can"), ("images/x.sif.json", 0o002, "every user can")],
)
def test_notes_that_other_users_could_have_written_are_not_trusted(image, record, tmp_path, poisoned, mode, who):
    assert image.reason_for_distrust(record.parent, record) is None
    path = tmp_path / poisoned
    path.chmod(path.stat().st_mode | mode)
    reason = image.reason_for_distrust(record.parent, record)
    assert reason.startswith(f"{who} write to {path}") and "chmod go-w" in reason


def test_notes_of_another_user_are_not_trusted_and_those_of_a_group_that_installs_are(image, record):
    if os.getuid():
        pytest.skip("only root can give files away")
    shutil.chown(record, user="daemon")
    assert "x.sif.json belongs to another user" in image.reason_for_distrust(record.parent, record)
    shutil.chown(record, group="daemon")
    record.chmod(0o664)
    update_build_option("group_writable_installdir", True)
    assert image.reason_for_distrust(record.parent, record) is None


def test_only_the_user_can_write_to_a_new_directory_for_notes_whatever_the_umask(image, tmp_path):
    mask = os.umask(0)
    try:
        image.make_directory(str(tmp_path / "p" / "images"))
    finally:
        os.umask(mask)
    assert (tmp_path / "p" / "images").stat().st_mode & 0o777 == 0o755
