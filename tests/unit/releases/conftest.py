"""Makes wheels for a package index that is a directory."""

import sys
from pathlib import Path

import pytest
from distributions import write_wheel

from testbed.layout import Layout
from testbed.lifecycle import provide_environment


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A function that adds wheels to the only package index of pip's configuration."""
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))

    def add(name, version, *tags, requires=()):
        for tag in tags:
            write_wheel(directory, name, version, {f"{name}.py": tag}, requirements=requires, tag=tag)

    add.directory = directory
    return add


@pytest.fixture(scope="session")
def testbed_root():
    """The testbed whose test tools run this test, with the tools of tools/new-release."""
    layout = Layout(Path(sys.prefix).parent)
    if not layout.marker.exists():
        pytest.skip(f"{sys.prefix} does not belong to a testbed")
    provide_environment(layout, "release")
    return layout.root


@pytest.fixture(scope="session")
def release_python(testbed_root):
    """The Python that has the tools of tools/release."""
    return testbed_root / "release-venv" / "bin" / "python"
