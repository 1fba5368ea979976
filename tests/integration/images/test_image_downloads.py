"""Downloads of images: interrupted, without a result, and repeated."""

import pytest
from image_site import flip_a_bit

from testbed.stand_ins.registry import Registry

pytestmark = [pytest.mark.testbed, pytest.mark.early]


def test_a_download_is_kept_and_used_again_without_the_registry(site, registry):
    lines = f"image = 'docker://{registry.address}/tiny/layers:1@{registry.layers}'"
    site.install(lines, "--fetch")
    names = sorted(path.name for path in site.images.iterdir())
    image = registry.layers.replace(":", "-") + ".sif"
    assert names == [image, image + ".json"]
    requests = len(registry.requested)
    assert "fetching..." not in site.install(lines, "--fetch")
    assert len(registry.requested) == requests

    flip_a_bit(site.images / image, 500_000)
    assert "fetching..." in site.install(lines, "--fetch")
    (site.images / f"{image}.json").write_text('{"identity": "cut o')
    assert "fetching..." in site.install(lines, "--fetch")


def test_an_interrupted_download_continues_with_the_missing_layers(site, registry):
    def kept():
        """Return the digests of the complete layers in the cache."""
        blobs = [path for path in site.images.glob("*.cache/cache/blob/blobs/sha256/*") if len(path.name) == 64]
        return {f"sha256:{path.name}" for path in blobs if path.stat().st_size > 900_000}

    with Registry(registry.directory, complete_blobs=3, cut_when=lambda: len(kept()) >= 2) as cutting:
        lines = f"image = 'docker://{cutting.address}/tiny/layers@{registry.layers}'"
        error = site.refuse(lines)
        assert "it keeps the layers that are complete" in error
        assert not list(site.images.glob("*.sif"))
        complete = kept()
        cutting.completed.clear()
        cutting.complete_blobs = None
        site.install(lines, "--fetch")
        assert cutting.completed
        assert not complete & set(cutting.completed)
    assert not list(site.images.glob("*.cache"))


def test_a_digest_that_the_registry_lacks_is_one_line(site, registry):
    wrong = "sha256:" + "0" * 64
    error = site.refuse(f"image = 'docker://{registry.address}/tiny/layers:1@{wrong}'")
    assert "manifest unknown" in error.lower() or "404" in error
    assert "Check the digest" in error
