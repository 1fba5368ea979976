"""Builds the documentation site once for the tests of a process."""

import sys

import pytest

from tools.website.__main__ import build


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The directory of the site of this tree, built strictly."""
    pytest.importorskip("mkdocs")
    directory = tmp_path_factory.mktemp("website") / "site"
    build(sys.executable, directory, "")
    return directory
