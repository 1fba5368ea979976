"""Downloads of images: existing ones, several at once, what remains of failures."""

import hashlib
import os
import platform
import socket
from pathlib import Path

import pytest
from fake_images import DIGEST, download, downloaded, keep_commands, sif

from pytorch_install.parameters import containerimage


def test_compression_is_a_variable_that_runtimes_without_that_option_ignore(image_of, tmp_path, monkeypatch):
    lines, values = (
        "sources = ['a.def']\nmksquashfs_args = '-comp gzip'",
        {"sources": [{"name": "a.def", "path": str(tmp_path / "a.def")}]},
    )
    (tmp_path / "a.def").write_text("Bootstrap: localimage\n")
    image = image_of(lines, builddir=str(tmp_path / "build"), **values)
    commands = keep_commands(monkeypatch, containerimage)
    image.build()
    image = image_of(f"image = 'docker://a/b@{DIGEST}'\nmksquashfs_args = '-comp gzip'")
    commands += download(image, monkeypatch)
    assert len(commands) == 2
    for command, variables in commands:
        assert variables["APPTAINER_MKSQUASHFS_ARGS"] == variables["SINGULARITY_MKSQUASHFS_ARGS"] == "-comp gzip"
        assert "build" in command
        assert "--mksquashfs-args" not in command


def test_an_existing_download_is_used_without_writing_to_its_directory(image_of, monkeypatch):
    image = image_of(f"image = 'docker://a/b@{DIGEST}'")
    download(image, monkeypatch)
    monkeypatch.setattr(containerimage, "mkdir", None)
    monkeypatch.setattr(containerimage, "locked", None)
    image.fetch()
    assert image.checksum == hashlib.sha256(sif(b"downloaded")).hexdigest()
    Path(f"{downloaded(image)}.json").write_text('{"identity": "cut o')
    with pytest.raises(TypeError):  # it would write
        image.fetch()


def test_a_source_path_without_locks_is_used_alone(monkeypatch, tmp_path):
    def no_locks(*_):
        raise OSError

    monkeypatch.setattr(containerimage.fcntl, "flock", no_locks)
    with containerimage.locked(str(tmp_path / "lock")) as is_alone:
        assert not is_alone


def test_each_machine_has_its_own_download(image_of, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert image_of(f"image = 'docker://a/b@{DIGEST}'").file_name.endswith(".aarch64.sif")


def test_the_part_of_a_killed_download_is_removed(image_of, monkeypatch):
    image = image_of(f"image = 'docker://a/b@{DIGEST}'")
    killed = Path(f"{downloaded(image)}.{socket.gethostname()}.uid-{os.getuid()}.{2**22 + 1}.part")
    killed.parent.mkdir(parents=True)
    killed.touch()
    download(image, monkeypatch)
    assert not killed.exists()
