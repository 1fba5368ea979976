"""An installation with new user-software for every test, and wheels to install."""

import shutil
import tempfile
from pathlib import Path

import pytest
from distributions import write_wheel
from framework_user import User
from user_installation import Installation


@pytest.fixture(scope="session")
def installed(testbed, small_image, packages):
    """The installation, with a copy of its unused user-software in `fresh`."""
    with tempfile.TemporaryDirectory(prefix="user-software-", dir=testbed.layout.root) as directory:
        installation = Installation(testbed, small_image, packages, Path(directory))
        installation.install()
        shutil.copytree(installation.store, installation.prefix / "fresh", symlinks=True)
        yield installation


@pytest.fixture
def installation(installed):
    """The installation with unused user-software."""
    for path in (installed.store, installed.prefix / "home"):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(installed.prefix / "fresh", installed.store, symlinks=True)
    (installed.prefix / "home").mkdir()
    return installed


@pytest.fixture
def wheels(work):
    """Wheels of a package with a command, and of a newer version of a package in the image."""
    for name, version in [("extra_package", "1.0"), ("networkx", "99.0")]:
        files = {f"{name}.py": f"def main():\n    print('{name} {version}', __file__)\n"}
        write_wheel(work, name, version, files, commands=f"{name}-command = {name}:main")
    return work


@pytest.fixture
def on_venv(testbed, venv, work):
    """A user of the venv module, with packages of their own."""
    load = f"export HOME={work}\nmodule load {venv}"
    return User(testbed, load, work, venv=True)


@pytest.fixture
def on_container(testbed, installation, work):
    """A user of a container module, with unused user-software."""
    # of the directories here, the image sees the working directory, but not this home directory
    load = f"export TORCH_EXTENSIONS_DIR={work}/extensions\n{installation.script('')}"
    return User(testbed, load, work, venv=False)


@pytest.fixture(params=["container", "venv"])
def user(request):
    """A user of each of the two modules."""
    return request.getfixturevalue(f"on_{request.param}")
