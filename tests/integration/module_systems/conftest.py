"""The modules of all runtimes under each module system, in shells without Slurm and EasyBuild."""

import pytest
from written_modules import CONTAINER, SHIFTER, SYSTEMS, VENV, write_modules


@pytest.fixture(scope="session", params=SYSTEMS, ids="-".join)
def written(request, testbed, container, venv, module_system, tmp_path_factory):
    """The modules of all runtimes under one module system: recipe -> Site."""
    name, syntax = request.param
    return write_modules(testbed, module_system(name), syntax, tmp_path_factory.mktemp("site"))


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
