"""Downloads of images: existing ones, several at once, what remains of failures."""

import errno
import hashlib
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


def test_without_locks_the_download_that_ends_first_is_used_by_both(image_of, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    first, second = (image_of(f"image = 'docker://a/b@{DIGEST}'") for _ in range(2))
    contents = [b"first", b"second"]  # the same image has other bytes each time that it is converted

    def arrive(command):
        content = contents.pop(0)
        if contents:
            second.fetch()
        Path(next(word for word in command if word.endswith(".part"))).write_bytes(sif(content))

    monkeypatch.setattr(containerimage.fcntl, "flock", no_locks)
    keep_commands(monkeypatch, containerimage, meanwhile=arrive)
    first.fetch()
    assert first.checksum == second.checksum == hashlib.sha256(sif(b"second")).hexdigest()
    assert downloaded(first).read_bytes() == sif(b"second")
    assert [path.name for path in downloaded(first).parent.glob("*.cache")] == []
