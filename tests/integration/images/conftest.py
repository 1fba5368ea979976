"""A site without images, and sources of images: the CPU image, a tiny image, a registry."""

import os

import pytest
from image_site import Site, make_layer

from testbed.stand_ins.registry import Registry


@pytest.fixture
def site(testbed, work):
    """A site without any image."""
    if testbed.obstacle:
        pytest.skip(f"no containers here: {testbed.obstacle}")
    return Site(testbed, work)


@pytest.fixture(scope="module")
def tiny(testbed, tmp_path_factory):
    """A small image in which nothing can run, for checks before anything runs."""
    if testbed.obstacle:
        pytest.skip(f"no containers here: {testbed.obstacle}")
    directory = tmp_path_factory.mktemp("tiny")
    root = directory / "root"
    root.mkdir()
    (root / "content").write_bytes(os.urandom(200_000))
    (directory / "tiny.def").write_text(f"Bootstrap: localimage\nFrom: {root}\n")
    testbed.run(f"apptainer --silent build {directory}/tiny.sif {directory}/tiny.def")
    return directory / "tiny.sif"


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """A registry on loopback with an image of five layers, whose digest is `registry.layers`."""
    directory = tmp_path_factory.mktemp("registry")
    layers = [make_layer(directory / f"layer{number}", 1_000_000) for number in range(5)]
    with Registry(directory) as registry:
        registry.layers = registry.add_layers(layers)
        yield registry
