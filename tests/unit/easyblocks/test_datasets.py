"""Data sets after their installation."""

import os
import sys
from pathlib import Path

import pytest
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import ConfigurationVariables, install_path
from easybuild.tools.version import VERSION
from recipes import TREE

pytestmark = pytest.mark.early

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


@pytest.mark.parametrize(
    ("options", "is_found"),
    [(["--sourcepath=x"], True), (["--sourcepath", "x"], True), ([], False), (["--sourcepath-data=y"], False)],
)
def test_a_source_path_on_the_command_line_covers_data_sets_also_with_a_prefix(
    easyblock, monkeypatch, tmp_path, options, is_found
):
    configuration = ConfigurationVariables()
    paths = {**configuration, "sourcepath": [str(tmp_path / "bundle")], "sourcepath_data": [str(tmp_path / "prefix")]}
    monkeypatch.setattr(configuration, "_FrozenDict__dict", paths)
    recipe = tmp_path / "MNIST-1998.eb"
    lines = [line for line in MNIST.read_text().splitlines() if "://" not in line or "homepage" in line]
    recipe.write_text("\n".join(lines).replace("source_urls = [\n]", ""))
    app = easyblock(recipe)
    names = app.cfg["data_sources"]
    (tmp_path / "bundle" / "m" / "MNIST").mkdir(parents=True)
    for name in names:
        (tmp_path / "bundle" / "m" / "MNIST" / name).touch()
    monkeypatch.setattr(sys, "argv", ["eb", *options])
    monkeypatch.setattr(app, "obtain_file", lambda name, **_: app.obtain_file_raise_on_failure(name, no_download=True))
    if is_found:
        app.fetch_sources(names, app.cfg["checksums"])
        assert [source["name"] for source in app.src] == list(names) == list(app.cfg["data_sources"])
    else:
        with pytest.raises(EasyBuildError, match="Couldn't find file"):
            app.fetch_sources(names, app.cfg["checksums"])
