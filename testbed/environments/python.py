"""Creates the testbed's virtual environments: of EasyBuild, and those for development."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from testbed import packages
from testbed.layout import TestbedError
from testbed.progress import run, step
from testbed.recipes import LOCK

EASYBUILD = "testbed/environments/requirements.txt"
#: Environments for development: title and requirements. That of ./run-tests has torch for the unit tests.
ENVIRONMENTS = {
    "test": ("installing the test tools", ["tests/requirements.txt", LOCK]),
    "release": ("installing the release tools", ["tools/releases/requirements.txt"]),
    "website": ("installing MkDocs", ["tools/website/requirements.txt"]),
}
#: The index of torch's own wheels for CPUs, as in the recipes.
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


def provide_easybuild(layout):
    """Install EasyBuild and put ``eb`` on the testbed's PATH."""
    provide(layout, layout.eb_venv, [EASYBUILD], title="installing EasyBuild")
    for package in layout.eb_venv.glob("lib/python*/site-packages/pkg_resources"):
        shutil.rmtree(package)  # `eb` would import it at each start, for facts that installations do not need
    layout.link_command("eb", layout.eb_venv / "bin" / "eb")
    if os.geteuid() == 0:
        link_python_of_all_users(layout)


def link_python_of_all_users(layout):
    """Put a Python of the venv recipes that is not in root's home first on the PATH: `eb` refuses any other.

    Debian's has no ensurepip without another package.
    """
    for directory in os.get_exec_path():
        python = Path(directory) / "python3.11"
        parents = {*python.parents, *python.resolve().parents}
        # nor one of a loaded module
        if python.exists() and not parents & {Path.home(), layout.root}:
            layout.link_command(python.name, python)
            check = subprocess.run([python, "-c", "import ensurepip"], stderr=subprocess.DEVNULL, check=False)
            if check.returncode:
                packages.install(layout, ["python3-venv"])
            return


def provide(layout, venv, requirements, *, title):
    """Create `venv` from requirements files (relative to the repository), unless it is up to date."""
    files = [layout.repository / name for name in requirements]
    wanted = "".join(file.read_text() for file in files)
    stamp = venv / "requirements.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    with step(title):
        shutil.rmtree(venv, ignore_errors=True)
        run([sys.executable, "-m", "venv", venv])
        for file in files:  # one call each: with hashes, pip needs them for every package of a call
            install(venv, "-r", file)
        stamp.write_text(wanted)


def install(venv, *what):
    """Install packages, or a requirements file after "-r", from pip's indexes; if that fails, also from torch's.

    Python compiles what it imports; pip would compile everything.
    """
    command = [venv / "bin" / "pip", "install", "-q", "--no-compile", *what]
    env = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}  # of a loaded module
    try:
        run(command, env=env)
    except TestbedError:
        more = ["--extra-index-url", TORCH_INDEX]
        run([*command, *more], env=env, advice="Check that the package index is reachable.")
