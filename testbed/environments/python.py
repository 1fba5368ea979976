"""The Python environments of the testbed: EasyBuild's for users, and the test runner's."""

import shutil
import sys

from testbed.layout import TestbedError
from testbed.progress import run, step
from testbed.recipes import LOCK

WRAPPER = "testbed/environments/eb"
EASYBUILD = "testbed/environments/requirements.txt"
TEST_TOOLS = "tests/requirements.txt"
#: The index of torch's own wheels for CPUs, as in the recipes.
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


def provide_easybuild(layout):
    """Put ``eb`` on the testbed's PATH."""
    provide(layout, layout.eb_venv, [EASYBUILD], title="installing EasyBuild")
    shutil.copy(layout.repository / WRAPPER, layout.bin / "eb")


def provide_test_tools(layout):
    """Make the environment that ``run-tests`` runs in, with torch for the unit tests."""
    provide(layout, layout.test_venv, [TEST_TOOLS, LOCK], title="installing the test tools")


def provide(layout, venv, requirements, *, title):
    """Make `venv` from requirements files (paths, relative to the repository), unless it was made from them."""
    files = [layout.repository / name for name in requirements]
    wanted = "".join(file.read_text() for file in files)
    stamp = venv / "requirements.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    with step(title):
        shutil.rmtree(venv, ignore_errors=True)
        run([sys.executable, "-m", "venv", venv])
        for file in files:  # one call each: pip wants hashes for all packages of a call or for none
            install(venv, file)
        stamp.write_text(wanted)


def install(venv, file):
    """Install a requirements file: from pip's own configuration, else from torch's index as well."""
    command = [venv / "bin" / "pip", "install", "-q", "-r", file]
    try:
        run(command)
    except TestbedError:
        run([*command, "--extra-index-url", TORCH_INDEX], advice="Is the package index reachable?")
