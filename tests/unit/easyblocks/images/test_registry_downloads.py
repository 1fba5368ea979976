"""Downloads of images: existing ones, several at once, what remains of failures."""

import errno
import hashlib
import json
import os
import socket
import subprocess
from pathlib import Path

import pytest
from easybuild.tools.build_log import EasyBuildError
from fake_images import DIGEST, download, downloaded, keep_commands, sif

from pytorch_install.images import definition, pull, registry
from pytorch_install.sources.recipe_sources import Source

# what the module's syntax is does not matter here
pytestmark = pytest.mark.parametrize("prefix", ["Lua"], indirect=True)


def test_compression_is_a_variable_that_runtimes_without_that_option_ignore(image_of, tmp_path, monkeypatch):
    lines, values = (
        "sources = ['a.def']\nmksquashfs_args = '-comp gzip'",
        {"sources": (Source("a.def", str(tmp_path / "a.def")),)},
    )
    (tmp_path / "a.def").write_text("Bootstrap: localimage\n")
    image = image_of(lines, builddir=str(tmp_path / "build"), **values)
    commands = keep_commands(monkeypatch, definition)
    image.build(image.expect_image())
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
    monkeypatch.setattr(pull, "mkdir", None)
    monkeypatch.setattr(registry, "locked", None)
    assert image.fetch().checksum == hashlib.sha256(sif(b"downloaded")).hexdigest()
    Path(registry.note_of(str(downloaded(image)))).write_text('{"identity": "cut o')
    with pytest.raises(TypeError):  # it would write
        image.fetch()


def test_a_download_of_another_source_path_is_used_unless_others_could_have_replaced_it(
    image_of, monkeypatch, tmp_path, capfd
):
    image = image_of(f"image = 'docker://a/b@{DIGEST}'")
    download(image, monkeypatch)
    path = downloaded(image)
    monkeypatch.setattr(registry, "source_directories", lambda *_: [str(tmp_path / "first"), str(path.parent)])
    assert image.find_anywhere().file == str(path)
    Path(registry.note_of(str(path))).chmod(0o666)
    assert image.find_anywhere() is None
    assert "downloading again: every user can write to" in capfd.readouterr().err


def test_only_parts_of_dead_processes_of_this_host_are_removed(image_of, monkeypatch):
    image = image_of(f"image = 'docker://a/b@{DIGEST}'")
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    path = downloaded(image)
    path.parent.mkdir(parents=True)
    stale, *others = [
        Path(f"{path}.{host}.{pid}.part")
        for host, pid in (
            (socket.gethostname(), ended.pid),
            (socket.gethostname(), os.getppid()),
            ("elsewhere", ended.pid),
        )
    ]
    for part in (stale, *others):
        part.write_text("")
    download(image, monkeypatch)
    assert not stale.exists()
    assert all(part.exists() for part in others)


def test_without_locks_the_first_of_two_downloads_is_kept(image_of, monkeypatch, tmp_path):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as file_system:
        file_system.setattr(registry.fcntl, "flock", no_locks)
        with registry.locked(str(tmp_path / "lock")) as alone:
            assert not alone
    image = image_of(f"image = 'docker://a/b@{DIGEST}'")
    first, path = sif(b"first"), downloaded(image)

    def other_process():
        cache = next(path.parent.glob("*.cache"))
        assert cache.name.endswith(f".{socket.gethostname()}.{os.getpid()}.cache")
        path.write_bytes(first)
        note = {"identity": image.identity, "sha256": hashlib.sha256(first).hexdigest()}
        Path(registry.note_of(str(path))).write_text(json.dumps(note))

    download(image, monkeypatch, alone=False, meanwhile=other_process)
    assert path.read_bytes() == first
    assert image.find_anywhere().checksum == hashlib.sha256(first).hexdigest()
    assert sorted(path.parent.iterdir()) == [path, Path(registry.note_of(str(path)))]


def test_a_cache_that_cannot_be_removed_does_not_fail_the_installation(image_of, monkeypatch):
    def busy(_):
        raise EasyBuildError("busy")

    monkeypatch.setattr(pull, "remove_dir", busy)
    image = image_of(f"image = 'docker://a/b@{DIGEST}'")
    download(image, monkeypatch)
    assert image.find_anywhere()
    caches = [path.name for path in downloaded(image).parent.glob("*.cache")]
    assert caches == [f"{downloaded(image).name}.{os.getuid()}.cache"]
