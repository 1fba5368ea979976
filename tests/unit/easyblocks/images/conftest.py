"""Easyblocks and image sources of a recipe with some lines."""

import pytest
from image_recipe import RECIPE


@pytest.fixture
def container(easyblock, tmp_path):
    """A function that makes the easyblock of a recipe with some lines."""

    def make(lines, kind="EB_PyTorchContainer"):
        recipe = tmp_path / "PyTorch-2.13.0-test.eb"
        recipe.write_text(RECIPE.format(lines=lines).replace("EB_PyTorchContainer", kind))
        return easyblock(recipe)

    return make


@pytest.fixture
def runtime(monkeypatch):
    """Apptainer is the container runtime, wherever the tests run."""
    monkeypatch.setattr("pytorch_install.parameters.containerimage.find_runtime", lambda: "apptainer")


@pytest.fixture
def image_of(container, runtime):
    """A function that gives the image of a recipe with some lines, and other attributes."""

    def make(lines, **values):
        image = container(lines).image
        for name, value in values.items():
            setattr(image, name, value)
        return image

    return make
