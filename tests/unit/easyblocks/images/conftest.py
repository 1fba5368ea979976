"""Easyblocks and image sources of a recipe with some lines."""

import pytest
from image_recipe import RECIPE

from pytorch_install.images.kinds import image_source


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
