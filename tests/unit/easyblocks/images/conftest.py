"""Image sources of a recipe with some lines."""

import pytest


@pytest.fixture
def runtime(monkeypatch):
    """Apptainer is the container runtime, wherever the tests run."""
    monkeypatch.setattr("pytorch_install.parameters.containerimage.find_runtime", lambda: "apptainer")


@pytest.fixture
def image_of(container, runtime):
    """A function that gives the image of a recipe with some lines, records of its sources, and other attributes."""

    def make(lines, sources=(), **values):
        block = container(lines)
        block.src = list(sources)
        image = block.image
        for name, value in values.items():
            setattr(image, name, value)
        return image

    return make
