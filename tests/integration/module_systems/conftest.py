"""The modules of all runtimes under each module system, in shells without Slurm and EasyBuild."""

import tempfile
from pathlib import Path

import pytest
from written_modules import CONTAINER, SHIFTER, SYSTEMS, VENV, write_modules


@pytest.fixture(scope="session", params=SYSTEMS, ids="-".join)
def written(request, testbed, container, venv, module_system):
    """The modules of all runtimes under one module system: recipe -> Site.

    Other users read them, so they are not below pytest's directory, which each start of pytest closes for others.
    """
    name, syntax = request.param
    with tempfile.TemporaryDirectory(prefix="site-", dir=testbed.layout.root) as root:
        yield write_modules(testbed, module_system(name), syntax, Path(root))


@pytest.fixture(params=[CONTAINER, VENV, SHIFTER], ids=["container", "venv", "shifter"])
def site(written, request):
    """One module under one module system."""
    return written[request.param]


@pytest.fixture
def image_site(written):
    """The container's module, and no user-software before or after the test."""
    site = written[CONTAINER]
    site.keep_no_user_software()
    yield site
    site.keep_no_user_software()
