"""Images as files: structure, copies, their record, and when one is kept."""

import hashlib
import json
from pathlib import Path

import pytest
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import update_build_option
from fake_images import DIGEST, sif

from pytorch_install.parameters import containerimage


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (sif(b"data", size=5), "is truncated: 132 of 133 bytes"),
        (sif(b"")[:100], "not an image in SIF format"),
        (b"#!/bin/sh\n" * 20, "not an image in SIF format"),
    ],
)
def test_a_truncated_image_and_another_file_are_refused(prefix, tmp_path, content, message):
    path = tmp_path / "x.sif"
    path.write_bytes(content)
    with pytest.raises(EasyBuildError, match=message):
        containerimage.require_image_format(str(path))


def test_a_copy_that_is_not_the_verified_file_is_refused(image_of, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"image")
    checksum = hashlib.sha256(b"image").hexdigest()
    image = image_of("sources = ['a.def']", file=str(source), checksum="0" * 64)
    with pytest.raises(EasyBuildError, match=f"has SHA-256 {checksum}, expected 0{{64}}"):
        image.install(str(target))
    image.checksum = None
    image.install(str(target))
    assert (image.checksum, target.read_bytes()) == (checksum, b"image")


def test_an_image_is_kept_unless_eb_is_forced_or_its_record_is_unusable(container, monkeypatch):
    monkeypatch.setattr(containerimage.Registry, "fetch", lambda _: None)

    def kept(record):
        app = container(f"image = 'docker://a/b@{DIGEST}'")
        image = app.image
        installed = Path(app.installation.before(app.image.name))
        (installed.parent / "provenance").mkdir(parents=True, exist_ok=True)
        installed.write_bytes(b"image")
        complete = {"identity": image.identity, "sha256": hashlib.sha256(b"image").hexdigest()}
        (installed.parent / "provenance" / "image.json").write_text(record(complete))
        app.checksum_step()
        return app.image.is_kept

    assert kept(json.dumps)
    assert not kept(lambda record: json.dumps(record)[:-9])
    update_build_option("force", True)
    assert not kept(json.dumps)


def test_a_dry_run_copies_nothing_and_reports_no_error(container, runtime):
    app = container(f"image = 'docker://a/b@{DIGEST}'\ncommands = ['sh']", "ContainerImage")
    app.dry_run = True
    app.install_step()
    assert not Path(app.installdir).exists()
