"""Data sets after their installation."""

import os
from pathlib import Path

from easybuild.tools.config import install_path
from easybuild.tools.version import VERSION
from recipes import TREE

MNIST = TREE / "easyconfigs" / "m" / "MNIST" / "MNIST-1998.eb"


def test_containers_that_bind_easybuilds_data_see_the_files_of_mnist(easyblock, monkeypatch):
    app = easyblock(MNIST)
    file = Path(app.installdir) / "t10k-labels-idx1-ubyte"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"labels")
    monkeypatch.chdir(app.installdir)
    app.post_processing_step()
    assert file.read_bytes() == b"labels"
    assert Path(os.path.realpath(install_path("data"))) in file.resolve().parents
    # EasyBuild before 5.4 ignores the recipe's object_storage_ignore_dirs
    assert file.is_symlink() is (VERSION < "5.4")
