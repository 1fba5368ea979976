"""Images: sources in a recipe, identity, copies, downloads, signatures, the list of packages."""

import errno
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import update_build_option

from pytorch_install.images import container_runtime, cotainr, definition, image_files, pull, registry, signature
from pytorch_install.images.image_files import images_directory
from pytorch_install.images.kinds import image_source
from pytorch_install.images.provenance import package_url, sbom
from pytorch_install.images.source import install_image
from pytorch_install.sources.recipe_sources import Source

# what the module's syntax is does not matter here
pytestmark = pytest.mark.parametrize("prefix", ["Lua"], indirect=True)

RECIPE = """easyblock = 'EB_PyTorchContainer'
name = 'PyTorch'
version = '2.13.0'
versionsuffix = '-test'
homepage = 'https://pytorch.org'
description = 'Test.'
toolchain = SYSTEM
{lines}
moduleclass = 'ai'
"""
DIGEST = "sha256:" + "5d" * 32


@pytest.fixture
def container(easyblock, tmp_path):
    """A function that makes the easyblock of a recipe with some lines."""

    def make(lines):
        recipe = tmp_path / "PyTorch-2.13.0-test.eb"
        recipe.write_text(RECIPE.format(lines=lines))
        return easyblock(recipe)

    return make


@pytest.fixture
def image_of(container):
    """A function that gives the image source of a recipe with some lines, and other values in its ImageSpec."""

    def make(lines, **values):
        return image_source(container(lines).image_spec._replace(runtime="apptainer", **values))

    return make


def sif(data, *, size=None):
    """A SIF header and data; the header specifies the size of the data, or `size`."""
    header = b"#!/usr/bin/env run-singularity\n\0" + b"SIF_MAGIC\0" + b"01\0" + b"02\0" + bytes(64)
    return header + struct.pack("<qq", 128, len(data) if size is None else size) + data


@pytest.mark.parametrize(
    ("reference", "uri"),
    [
        (f"docker://pytorch/pytorch@{DIGEST}", f"docker://pytorch/pytorch@{DIGEST}"),
        (f"docker://pytorch/pytorch:2.14.0-cuda@{DIGEST}", f"docker://pytorch/pytorch@{DIGEST}"),
        (f"docker://host.org:5000/a/b:1@{DIGEST}", f"docker://host.org:5000/a/b@{DIGEST}"),
        (f"oras://host.org/a/b:1@{DIGEST}", f"oras://host.org/a/b@{DIGEST}"),
        (f"library://site/default/pytorch:sha256.{'5d' * 32}", f"library://site/default/pytorch:sha256.{'5d' * 32}"),
    ],
)
def test_a_pinned_reference_is_given_to_the_runtime_without_its_tag(image_of, reference, uri):
    image = image_of(f"image = '{reference}'")
    assert image.pinned.uri == uri
    assert image.digest == DIGEST
    assert image.reference == reference


@pytest.mark.parametrize(
    ("reference", "advice"),
    [
        ("docker://pytorch/pytorch", r"`skopeo inspect --raw docker://pytorch/pytorch \| sha256sum`"),
        ("docker://pytorch/pytorch:latest", r"docker://pytorch/pytorch:latest \| sha256sum"),
        ("docker://pytorch/pytorch@sha256:5d5d", r"append '@sha256:<digest>'"),
        ("oras://host.org:5000/a/b:1", r"docker://host.org:5000/a/b:1 \| sha256sum"),
        ("library://site/default/pytorch:2.1", r"end it in ':sha256\.<hash>'"),
    ],
)
def test_the_error_for_an_unpinned_reference_reports_how_to_find_its_digest(image_of, reference, advice):
    with pytest.raises(EasyBuildError, match=rf"is not pinned.*{advice}"):
        image_of(f"image = '{reference}'")


@pytest.mark.parametrize("image", ["/appl/x.sif", "x.img", "shub://a/b"])
def test_an_image_that_is_neither_reference_nor_file_name_is_refused(image_of, image):
    with pytest.raises(EasyBuildError, match="is neither a reference .* nor a file name"):
        image_of(f"image = '{image}'")


def test_two_images_are_refused(image_of):
    with pytest.raises(EasyBuildError, match=r"must name one image source, .*found: \.def, x\.sif"):
        image_of("sources = ['a.def']\nimage = 'x.sif'")


def test_an_environment_file_needs_a_base_image_with_a_digest(image_of):
    with pytest.raises(EasyBuildError, match="needs 'base_image'"):
        image_of("sources = ['env.yml']")
    with pytest.raises(EasyBuildError, match="base_image = 'docker://debian:12' is not pinned"):
        image_of("sources = ['env.yml']\nbase_image = 'docker://debian:12'")


def test_a_signing_key_must_be_a_source_and_the_image_one_that_can_be_signed(image_of):
    with pytest.raises(EasyBuildError, match="must be one of 'sources'"):
        image_of("image = 'x.sif'\nsigning_key = 'key.pem'")
    for lines in ("sources = ['a.def', 'key.pem']", f"sources = ['key.pem']\nimage = 'docker://a/b@{DIGEST}'"):
        with pytest.raises(EasyBuildError, match="has no signature"):
            image_of(f"{lines}\nsigning_key = 'key.pem'")


def test_the_identity_changes_with_the_content_only(image_of):
    def identity(lines, **sources):
        fetched = tuple(Source(name, sha256=checksum) for name, checksum in sources.items())
        image = image_of(lines)
        return type(image)(image.spec._replace(sources=fetched)).identity

    built = identity("sources = ['a.def']", a="1")
    assert built == identity("sources = ['a.def']\ngpu = 'cuda'", a="1")
    assert built != identity("sources = ['a.def']", a="2")
    assert built != identity("sources = ['a.def']\nmksquashfs_args = '-comp gzip'", a="1")
    fetched = identity(f"image = 'docker://a/b@{DIGEST}'")
    assert fetched == identity(f"image = 'docker://a/b:tag@{DIGEST}'")
    assert fetched != identity(f"image = 'docker://a/b@{DIGEST}'\nmksquashfs_args = '-comp gzip'")
    pushed = identity(f"image = 'oras://a/b@{DIGEST}'")
    assert pushed == identity(f"image = 'oras://a/b@{DIGEST}'\nmksquashfs_args = '-comp gzip'")


def test_an_image_of_the_site_keeps_its_name_and_is_found_without_a_copy(container, tmp_path):
    path = tmp_path / "central" / "x.sif"
    path.parent.mkdir()
    path.write_bytes(sif(b"data"))
    app = container(f"image = 'x.sif'\ncentral_images = ['{tmp_path}/nowhere', '{path.parent}']")
    app.checksum_step()
    image = app.image
    assert app.image_name == "x.sif"
    assert image.file == str(path)
    assert image.identity == "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("content", "message"),
    [(sif(b"data", size=5), "is truncated: 132 of 133 bytes"), (sif(b"")[:100], "not an image in SIF format"),
     (b"#!/bin/sh\n" * 20, "not an image in SIF format")],
)  # fmt: skip
def test_a_truncated_image_and_another_file_are_refused(prefix, tmp_path, content, message):
    path = tmp_path / "x.sif"
    path.write_bytes(content)
    with pytest.raises(EasyBuildError, match=message):
        image_files.check_structure(str(path))


def test_a_copy_is_complete_and_verified_or_does_not_exist(prefix, tmp_path, monkeypatch):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"image")
    checksum = hashlib.sha256(b"image").hexdigest()
    with pytest.raises(EasyBuildError, match=f"has SHA-256 {checksum}, expected "):
        image_files.copy_verified(str(source), str(target), "0" * 64)
    assert sorted(tmp_path.glob("target*")) == []

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(image_files.os, "fsync", full)
        with pytest.raises(EasyBuildError, match=r"Copying .*source to .*target failed: No space left on device"):
            image_files.copy_verified(str(source), str(target))
    assert sorted(tmp_path.glob("target*")) == []
    assert image_files.copy_verified(str(source), str(target), checksum) == checksum
    assert target.read_bytes() == b"image"
    assert sorted(tmp_path.glob("target*")) == [target]


def keep_commands(monkeypatch, module, output="", meanwhile=None):
    """Replace a module's commands by `meanwhile`; returns a list of them, with their variables."""
    commands = []

    def run(command, variables=None, **_):
        commands.append((command, variables))
        if meanwhile:
            meanwhile(command)
        return SimpleNamespace(exit_code=0, output=output, stderr="")

    monkeypatch.setattr(module, "run_command", run)
    return commands


def test_compression_is_a_variable_that_runtimes_without_that_option_ignore(image_of, tmp_path, monkeypatch):
    lines, values = "sources = ['a.def']\nmksquashfs_args = '-comp gzip'", {"sources": (Source("a.def", "/a.def"),)}
    image = image_of(lines, builddir=str(tmp_path), **values)
    commands = keep_commands(monkeypatch, definition)
    image.build(image.describe())
    image = image_of(f"image = 'docker://a/b@{DIGEST}'\nmksquashfs_args = '-comp gzip'")
    commands += download(image, monkeypatch)
    assert len(commands) == 2
    for command, variables in commands:
        assert variables["APPTAINER_MKSQUASHFS_ARGS"] == variables["SINGULARITY_MKSQUASHFS_ARGS"] == "-comp gzip"
        assert "build" in command
        assert "--mksquashfs-args" not in command


def download(image, monkeypatch, *, alone=True, meanwhile=lambda: None):
    """Download an image from nowhere; returns the commands that did it."""

    def arrive(command):
        part = next(word for word in command if word.endswith(".part"))
        Path(part).write_bytes(sif(b"downloaded"))
        meanwhile()

    directory = images_directory("PyTorch")
    Path(directory).mkdir(parents=True, exist_ok=True)
    commands = keep_commands(monkeypatch, pull, meanwhile=arrive)
    image.download(directory, alone)
    return commands


def downloaded(image):
    """Path of an image's finished download."""
    return Path(image.file_in(images_directory("PyTorch")))


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
    stale, *others = [Path(f"{path}.{host}.{pid}.part") for host, pid in (
        (socket.gethostname(), ended.pid), (socket.gethostname(), os.getppid()), ("elsewhere", ended.pid))]
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


def test_the_checksum_of_a_sites_image_is_noted_after_the_installation_or_a_warning_reports_why_not(
    container, tmp_path, capfd
):
    path = tmp_path / "central" / "x.sif"
    path.parent.mkdir()
    path.write_bytes(sif(b"data"))
    app = container(f"image = 'x.sif'\ncentral_images = ['{path.parent}']")
    app.checksum_step()
    record = Path(image_source(app.image_spec).record)
    install_image(app.image, str(tmp_path / "installed.sif"))
    assert not record.exists()
    app.user_software.finish = lambda *_: None
    app.complete()
    assert record.read_text() == f"{app.image.checksum}  x.sif\n"
    record.write_text("")  # of a disk that was full
    app.checksum_step()
    record.unlink()
    record.parent.rmdir()
    record.parent.write_text("no directory")
    app.complete()
    assert "cannot record the checksum" in capfd.readouterr().err


def test_module_only_completes_without_an_image_that_was_fetched(container, tmp_path):
    for lines in ("image = 'x.sif'", "sources = ['x.sif']", "sources = ['a.def']", f"image = 'docker://a/b@{DIGEST}'",
                  "sources = ['env.yml']\nbase_image = 'x.sif'"):  # fmt: skip
        app = container(lines)
        app.complete()
        assert not list(tmp_path.rglob("*.sha256"))


def test_an_image_is_kept_unless_eb_is_forced_or_its_record_is_unusable(container, monkeypatch):
    monkeypatch.setattr(registry.RegistryImage, "fetch", registry.RegistryImage.describe)

    def kept(record):
        app = container(f"image = 'docker://a/b@{DIGEST}'")
        image = image_source(app.image_spec)
        installed = Path(app.installation.before(app.image_name))
        (installed.parent / "provenance").mkdir(parents=True, exist_ok=True)
        installed.write_bytes(b"image")
        complete = {"identity": image.identity, "signing_key": None, "sha256": hashlib.sha256(b"image").hexdigest()}
        (installed.parent / "provenance" / "image.json").write_text(record(complete))
        app.checksum_step()
        return app.image.is_kept

    assert kept(json.dumps)
    assert not kept(lambda record: json.dumps(record)[:-9])
    assert not kept(lambda record: json.dumps({"identity": record["identity"], "signing_key": None}))
    assert not kept(lambda _: "[]")
    update_build_option("force", True)
    assert not kept(json.dumps)


def test_a_signature_without_signers_is_refused(prefix, monkeypatch):
    fingerprint = "5D" * 20
    for signers, verdict in (([], "no signature was found"), (None, "no signature was found"),
                             ([{"Signer": {"Fingerprint": fingerprint}}], None)):  # fmt: skip
        answers = [f"fingerprint {fingerprint} successfully", json.dumps({"SignerKeys": signers})]
        results = [SimpleNamespace(exit_code=0, output=answer, stderr="") for answer in answers]
        monkeypatch.setattr(signature, "run_command", lambda *_, results=results, **__: results.pop(0))
        assert signature.verify_openpgp("apptainer", "x.sif", "key.asc") == verdict


def test_cotainr_is_not_started_where_its_singularity_is_missing(image_of, monkeypatch):
    image = image_of("sources = ['env.yml']\nbase_image = 'x.sif'")
    monkeypatch.setattr(cotainr, "which", lambda name: name == "cotainr")
    with pytest.raises(EasyBuildError, match="singularity not found on PATH"):
        image.build(image.describe())


def test_the_activation_of_the_conda_environment_can_have_quotation_marks(prefix):
    activation = """export "A=it's"' here'"""
    command = container_runtime.image_python("apptainer", "x.sif", activation)
    assert command[:3] == ["apptainer", "exec", "x.sif"]
    environment = {**os.environ, "WITH_CONDA": 'export "B=of the image"'}
    code = "import os; print(os.environ['A'], os.environ['B'])"
    output = subprocess.check_output([*command[3:], "-c", code], env=environment, text=True)
    assert output == "it's here of the image\n"


def test_packages_without_a_version_are_left_out_of_the_list(prefix, tmp_path):
    for name, text in (("whole-1.dist-info", "Name: whole\nVersion: 1\n"), ("half-1.dist-info", "Name: half\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "METADATA").write_text(text)
    (tmp_path / "nothing-1.dist-info").mkdir()
    program = Path(image_files.__file__).parents[1] / "programs" / "list_packages.py"
    output = subprocess.check_output([sys.executable, program], env={**os.environ, "PYTHONPATH": str(tmp_path)})
    python = {package["name"]: package["version"] for package in json.loads(output)["packages"]["python"]}
    assert python["whole"] == "1"
    assert not {"half", "nothing"} & set(python)


@pytest.mark.parametrize(
    ("kind", "package", "url"),
    [
        ("python", {"name": "typing_extensions", "version": "4.16.0"}, "pkg:pypi/typing-extensions@4.16.0"),
        ("python", {"name": "torch", "version": "2.13.0+cpu"}, "pkg:pypi/torch@2.13.0%2Bcpu"),
        ("conda", {"name": "zlib", "version": "1.3", "build": "h1_0"}, "pkg:conda/zlib@1.3?build=h1_0"),
        ("deb", {"name": "libc6", "version": "1:2.36-9", "architecture": "amd64"},
         "pkg:deb/suse/libc6@1%3A2.36-9?arch=amd64&distro=suse-15.5"),
        ("rpm", {"name": "glibc", "version": "2.31-1", "architecture": "x86_64"},
         "pkg:rpm/suse/glibc@2.31-1?arch=x86_64&distro=suse-15.5"),
    ],
)  # fmt: skip
def test_package_urls_are_those_of_the_specification(prefix, kind, package, url):
    assert package_url(kind, package, {"ID": "suse", "VERSION_ID": "15.5"}) == url


def test_the_bill_of_materials_names_every_package_once(prefix):
    record = {"image": "x.sif", "digest": DIGEST, "sha256": "5d" * 32, "installed": "2026-01-01T00:00:00+00:00"}
    torch = {"name": "torch", "version": "2.13.0"}
    bill = sbom(record, {"distribution": {}, "packages": {"python": [torch, torch], "conda": []}})
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.5", 1)
    assert bill["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": record["sha256"]}]
    assert [component["purl"] for component in bill["components"]] == ["pkg:pypi/torch@2.13.0"]
