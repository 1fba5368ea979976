"""A site without images, and a registry with one."""

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
def registry(tmp_path_factory):
    """A registry on loopback with an image of five layers, whose digest is `registry.layers`."""
    directory = tmp_path_factory.mktemp("registry")
    layers = [make_layer(directory / f"layer{number}", 1_000_000) for number in range(5)]
    with Registry(directory) as registry:
        registry.layers = registry.add_layers(layers)
        yield registry
