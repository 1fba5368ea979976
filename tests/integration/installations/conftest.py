"""Prefixes with a recipe that installs in seconds."""

import pytest
from install_prefix import Prefix


@pytest.fixture(scope="module")
def prefix(testbed, tmp_path_factory):
    """A prefix with a recipe; tests may leave a complete installation in it."""
    directory = tmp_path_factory.mktemp("prefix")
    shifter = directory / "bin" / "shifter"
    shifter.parent.mkdir()
    shifter.write_text('#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nSHIFTER_IMAGEREQUEST=tiny exec "$@"\n')
    shifter.chmod(0o755)
    # for what all easyblocks share: the easyblock whose runtime is not installed
    return Prefix(testbed, directory, "EB_PyTorchShifter", "image = 'tiny'")


@pytest.fixture
def installed(prefix):
    """The prefix with a complete installation in it."""
    if not prefix.works():
        result = prefix.eb()
        assert result.returncode == 0, result.stderr
    return prefix
