"""Images as files: structure, downloads, copies, their record, when one is kept, and for which machine they are."""

import hashlib
import json
import platform
from pathlib import Path

import pytest
from easybuild.framework.easyblock import EasyBlock
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import update_build_option
from fake_images import DIGEST, sif

from pytorch_install.parameters import containerimage

pytestmark = pytest.mark.early

OTHER = "aarch64" if platform.machine() == "x86_64" else "x86_64"
HERE = platform.machine()


@pytest.mark.parametrize("content", [sif(b"data", size=5), sif(b"")[:100], b"#!/bin/sh\n" * 20])
def test_a_truncated_image_and_another_file_are_refused(prefix, tmp_path, content):
    path = tmp_path / "x.sif"
    path.write_bytes(content)
    with pytest.raises(EasyBuildError, match="is not a complete image in SIF format"):
        containerimage.require_image_format(str(path))


def test_a_copy_that_is_not_the_verified_file_is_refused(image_of, tmp_path):
    source = tmp_path / "source"
    target = tmp_path / "target"
    source.write_bytes(b"image")
    checksum = hashlib.sha256(b"image").hexdigest()
    image = image_of("sources = ['a.def']", file=str(source), checksum="0" * 64)
    with pytest.raises(EasyBuildError, match=f"has SHA-256 {checksum}, expected 0{{64}}"):
        image.install(str(target))
    image.checksum = None
    image.install(str(target))
    assert (image.checksum, target.read_bytes()) == (checksum, b"image")


def test_an_image_is_kept_unless_eb_is_forced_or_its_record_has_another_identity(container, monkeypatch):
    monkeypatch.setattr(containerimage.Registry, "fetch", lambda _: None)

    def kept(record):
        app = container(f"image = 'docker://a/b@{DIGEST}'")
        image = app.image
        installed = Path(app.installation.before(app.image.name))
        (installed.parent / "provenance").mkdir(parents=True, exist_ok=True)
        installed.write_bytes(b"image")
        complete = {"identity": image.identity, "sha256": hashlib.sha256(b"image").hexdigest()}
        (installed.parent / "provenance" / "image.json").write_text(record(complete))
        app.fetch_step()
        return app.image.is_kept

    assert kept(json.dumps)
    assert not kept(lambda record: json.dumps({**record, "identity": "another"}))
    update_build_option("force", True)
    assert not kept(json.dumps)


def test_a_dry_run_copies_nothing_and_reports_no_error(container, runtime):
    app = container(f"image = 'docker://a/b@{DIGEST}'\ncommands = ['sh']", "ContainerImage")
    app.dry_run = True
    app.install_step()
    assert not Path(app.installdir).exists()


def test_each_machine_has_its_own_download(image_of, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert image_of(f"image = 'docker://a/b@{DIGEST}'").download_name.endswith(".aarch64.sif")


@pytest.fixture
def made(container, runtime, monkeypatch):
    """A function that makes the easyblock of a recipe with some lines; EasyBuild's part of post_init is left out."""
    monkeypatch.setattr(EasyBlock, "post_init", lambda _: None)
    return container


@pytest.mark.parametrize("kind", ["EB_PyTorchContainer", "EB_PyTorchVenv", "EB_PyTorchShifter"])
def test_a_recipe_for_other_machines_is_one_sentence_before_anything_is_changed(made, monkeypatch, kind):
    image = "image = 'x.sif'" if kind != "EB_PyTorchVenv" else ""
    app = made(f"{image}\nmachines = ['{OTHER}']", kind)
    monkeypatch.setattr(app.installation, "recover", None)
    with pytest.raises(EasyBuildError, match=rf"^PyTorch-2\.13\.0-test\.eb is for {OTHER}, and this host is {HERE}\. "):
        app.post_init()
