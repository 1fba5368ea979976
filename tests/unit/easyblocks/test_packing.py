"""Packed venvs: the packed file, its record, its commands in bin/, and the variable of the module."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from easybuild.tools.build_log import EasyBuildError
from recipes import VENV


@pytest.fixture
def packed(easyblock, edited):
    """The easyblock of the CPU venv with `packed = True`, and its installation directory."""
    app = easyblock(edited(VENV, "cluster = 'local'", "cluster = 'local'\npacked = True"))
    app.make_installdir()
    return app


def test_an_installation_is_packed_as_it_is_with_a_marker_and_the_checksum_is_recorded(packed, tmp_path):
    if not shutil.which("mksquashfs"):
        pytest.skip("mksquashfs is not installed")
    from easybuild.easyblocks.pytorchvenv import pack

    root = Path(packed.installdir)
    (root / "bin").mkdir()
    (root / "bin" / "python").symlink_to("../libexec/enter")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "venv"], check=True)
    (root / "venv.squashfs").write_text("of an earlier installation")
    (tmp_path / "link").symlink_to(root.parent)
    for path in (root, tmp_path / "link" / root.name):
        pack(str(path), "-comp lz4 -no-fragments", 1)
    record = json.loads((root / "provenance" / "packed.json").read_text())
    content = (root / "venv.squashfs").read_bytes()
    assert record == {"file": "venv.squashfs", "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    listed = subprocess.run(["unsquashfs", "-l", root / "venv.squashfs"], capture_output=True, text=True, check=True)
    names = sorted(line for line in listed.stdout.splitlines() if re.match("squashfs-root/(?!venv)", line))
    assert names == [
        "squashfs-root/.packed",
        "squashfs-root/bin",
        "squashfs-root/bin/python",
        "squashfs-root/provenance",
        "squashfs-root/provenance/packed.json",
    ]
    assert not list(root.glob("*.part"))


def test_without_mksquashfs_the_installation_fails_before_the_long_steps(packed, monkeypatch):
    monkeypatch.setattr("easybuild.easyblocks.pytorchvenv.which", lambda _: None)
    monkeypatch.setattr("easybuild.easyblocks.generic.lockedvenv.which", lambda _: "/usr/bin/python3.11")
    with pytest.raises(EasyBuildError, match="mksquashfs not found on PATH, and the recipe has packed = True"):
        packed.configure_step()


def test_the_module_names_the_packed_file_if_it_is_installed(packed):
    assert "PYTORCH_PACKED" not in packed.make_module_extra()
    Path(packed.installdir, "venv.squashfs").touch()
    (line,) = [line for line in packed.make_module_extra().splitlines() if "PYTORCH_PACKED" in line]
    assert line.startswith("pushenv")
    assert "venv.squashfs" in line


def test_the_commands_of_a_packed_venv_are_in_bin(packed):
    from pytorch_install import tree

    tree.install_parts(packed.installdir)
    tree.install_commands(packed.ENGINE, packed.image_commands, packed.installdir)
    bin_ = Path(packed.installdir, "bin")
    for name in ("python", "python3", "python3.11", "pip", "pip3", "pip3.11"):
        assert os.path.realpath(bin_ / name) == os.path.realpath(Path(packed.installdir, "libexec", "enter"))
    for name in ("conda-python-distributed", "torchrun"):  # which choose the active environment
        assert os.readlink(bin_ / name) == f"../runscripts/{name}" == tree.bin_links("")[name]
